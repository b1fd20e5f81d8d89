"""Everything beyond recorded shapes, in the order of trust: capture trace, roles from the model, counters over all."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diagnose.devices import Roofs
from diagnose.store import Store

if TYPE_CHECKING:
    from diagnose.serving.model_config import ModelConfig


def supplement(
    store: Store,
    model: "ModelConfig | None",
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    capture: Path | None = None,
    ncu: Sequence[Path] = (),
    roofs: dict[int, Roofs | None] | None = None,
    arch: str | None = None,
) -> None:
    """Add to `cost` what a model, a capture trace and counters say; what was done goes into `ingest_note`.

    InputError for a capture trace or counters that cannot be read, UsageError for a `tp` that fits no head.
    """
    notes: list[tuple[str, str, int, str]] = []
    # Imported when asked for: most traces need none of them, and their imports are a tenth of a second.
    if capture is not None:
        from diagnose.roles.capture import assign_from_capture

        notes += assign_from_capture(store, capture, arch=arch, by_step=model is None).notes
    if model is not None:
        from diagnose.roles.assign import assign_roles

        notes += assign_roles(store, model, tp=tp, pp=pp, ep=ep, roofs=roofs).notes
    notes += untyped(store, model)
    if ncu:
        from diagnose.ingest.ncu import load_ncu
        from diagnose.roles.counters import apply_counters

        load_ncu(ncu, store)
        notes += apply_counters(store)
    store.insert(
        "ingest_note",
        [
            {"source_id": 0, "code": code, "severity": severity, "count": count, "message": message}
            for code, severity, count, message in notes
        ],
    )


def untyped(store: Store, model: "ModelConfig | None") -> list[tuple[str, str, int, str]]:
    """Say where element types came from when operators recorded sizes without them (NVTX ranges)."""
    count = store.scalar(
        """SELECT count(*) FROM kernel k JOIN cost c USING (kernel_id) JOIN op o ON o.op_id = k.op_id
        JOIN signature s ON s.signature_id = o.signature_id
        WHERE s.input_dims IS NOT NULL AND s.input_dtypes IS NULL AND c.source = 'shape'"""
    )
    if not count:
        return []
    also = f", else from {model.name} ({model.dtype})" if model is not None else ""
    return [("untyped-shapes", "info", int(count),
             f"operators recorded sizes without element types: {count} kernels take theirs from the kernel's name{also}")]  # fmt: skip
