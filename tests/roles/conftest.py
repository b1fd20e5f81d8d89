"""Steps of kernels as engines launch them, in stores filled by hand."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diagnose.serving.model_config import ModelConfig
from diagnose.serving.model_load import model_from_config
from diagnose.store import Store
from diagnose.store.schema import BY_NAME

# Names as profilers print them, shortened inside template arguments.
NAMES = {
    "embed": "void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)",
    "norm": "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, c10::BFloat16 const*, long)",
    "add_norm": "std::enable_if<(((8)>(0)))>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
    "qkv": "nvjet_tst_64x8_64x16_2x1_v_bz_TNT", "q": "nvjet_tst_32x8_64x16_2x1_v_bz_TNT", "k": "nvjet_tst_16x8_64x16_1x1_v_bz_TNT",
    "v": "nvjet_tst_16x8_64x16_1x1_v_bz_TNT", "o": "nvjet_tst_64x16_64x16_4x1_v_bz_TNN",
    "gate_up": "nvjet_tst_128x8_64x12_2x1_v_bz_TNT", "gate": "nvjet_tst_96x8_64x12_2x1_v_bz_TNT", "up": "nvjet_tst_96x8_64x12_2x1_v_bz_TNT",
    "down": "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT", "sum": "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(x)",
    "router": "void gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, float>(x)",
    "rope": "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*, c10::BFloat16*)",
    "kv": "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(x)",
    "attention": "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t>, false>(x)",
    "merge": "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>, 4, 3>(x)",
    "act": "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>(c10::BFloat16*)",
    "head": "nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "topk": "void vllm::moe::topkGatingSoftmax<8, 64, 4, 16, 32>(x)",
    "align": "void vllm::moe::moe_align_block_size_kernel<int>(x)", "experts": "fused_moe_kernel",
    "moe_sum": "void vllm::moe_sum_kernel<c10::BFloat16, 2>(x)", "all_reduce": "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(x)",
    "argmax": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(x)",
}  # fmt: skip


@dataclass
class Item:
    """One kernel to put into a store."""

    what: str
    dur_ns: int = 10_000
    name: str = ""
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.name or NAMES[self.what]


def dense_layer(
    first: bool = False, *, unfused: bool = False, tp: bool = False, split: bool = True
) -> list[Item]:
    """One dense decoder layer: names of what runs, in order."""
    pre = ["norm" if first else "add_norm"]
    pre += ["q", "k", "v"] if unfused else ["qkv"]
    pre += ["rope", "kv", "attention", "merge", "o"]
    pre += ["all_reduce"] * tp
    post = ["add_norm"]
    post += ["gate", "up"] if unfused else ["gate_up"]
    post += ["act", "down"] + ["sum"] * split + ["all_reduce"] * tp
    return [Item(w) for w in pre + post]


def moe_layer(first: bool = False) -> list[Item]:
    """One layer with routed experts."""
    order = ["norm" if first else "add_norm", "qkv", "rope", "kv", "attention", "merge", "o", "add_norm", "router", "topk", "align",
             "experts", "act", "experts", "moe_sum"]  # fmt: skip
    return [Item(w) for w in order]


def whole_step(layers: list[list[Item]]) -> list[Item]:
    """Embedding, layers, last norm, vocabulary projection, sampling."""
    return [
        Item("embed"),
        *(i for layer in layers for i in layer),
        Item("add_norm"),
        Item("head"),
        Item("argmax"),
    ]


class Trace:
    """A store with steps of kernels."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._names: dict[str, int] = {}
        self.next_id = 0
        for table in (
            "name",
            "kernel",
            "op",
            "signature",
            "gpu_copy",
            "gpu_memset",
            "step",
            "cost",
            "ingest_note",
        ):
            store.con.execute(BY_NAME[table].ddl())

    def name(self, text: str) -> int:
        if text not in self._names:
            self._names[text] = len(self._names)
            self.store.insert("name", [{"name_id": self._names[text], "text": text}])
        return self._names[text]

    def step(self, step_id: int, items: list[Item], **numbers: Any) -> list[int]:
        """Add a step; returns its kernel ids. `numbers` are columns of table `step`."""
        self.store.insert("step", [{"step_id": step_id, "device_id": 0, **numbers}])
        ids, rows = [], []
        for item in items:
            rows.append({
                "kernel_id": self.next_id, "device_id": 0, "stream": 7, "start_ns": self.next_id * 100_000, "dur_ns": item.dur_ns,
                "name_id": self.name(item.text), "step_id": step_id, "link": "graph", "launch_id": step_id, **item.fields,
            })  # fmt: skip
            ids.append(self.next_id)
            self.next_id += 1
        keys = list(rows[0])
        for row in rows:
            keys += [k for k in row if k not in keys]
        self.store.con.executemany(
            f"INSERT INTO kernel ({', '.join(keys)}) VALUES ({', '.join('?' * len(keys))})",
            [[row.get(k) for k in keys] for row in rows],
        )
        return ids

    def costs(self) -> dict[int, dict[str, Any]]:
        return {row["kernel_id"]: row for row in self.store.dicts("SELECT * FROM cost ORDER BY kernel_id")}


DECODE = {
    "phase": "decode", "sequences": 8, "prefill_sequences": 0, "decode_sequences": 8, "prefill_tokens": 0, "decode_tokens": 8,
    "context_tokens": 8_000, "prefill_context_tokens": 0, "prefill_pairs": 0.0,
}  # fmt: skip


@pytest.fixture
def trace() -> Iterator[Trace]:
    with Store() as store:
        yield Trace(store)


@pytest.fixture
def decode() -> dict[str, Any]:
    """A decode step of 8 sequences that hold 1,000 tokens each."""
    return dict(DECODE)


@pytest.fixture
def make() -> Any:
    """The builders above, for tests (this folder is no package)."""

    class Builders:
        item = Item
        dense = staticmethod(dense_layer)
        moe = staticmethod(moe_layer)
        step = staticmethod(whole_step)
        names = NAMES

    return Builders


@pytest.fixture
def model() -> Callable[..., ModelConfig]:
    """A Llama-like model of 4 layers: hidden 4096, 32 heads, 8 KV heads of 128, intermediate 14336, vocabulary 128256."""

    def of(**changes: Any) -> ModelConfig:
        config = {
            "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }  # fmt: skip
        return model_from_config({**config, **changes}, name="a model")

    return of


@pytest.fixture
def shared() -> Path:
    """Folder of the real traces; skips where it is absent."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("no real traces beside the repository")
    return folder
