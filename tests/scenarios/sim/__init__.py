"""A discrete-event simulator of LLM inference whose limit is known because it is computed.

It writes what real tools write (Kineto JSON, nsys SQLite, Prometheus scrapes, engine logs, benchmark results) for a run
whose physics are set here, and finds what limits that run by running it again with one resource relieved at a time
under the same random numbers. It shares no code with the product: device numbers are typed from public data sheets,
efficiency curves from public measurements (sources beside each constant).

Layers, each using only those above it: `rng`, `hardware`, `model`, `core` (event loop, streams, hosts), `world` (all
parameters of a run), `loop` (the engine loop on simulated hosts), `serving` (requests, KV blocks, batching), writers
(`kineto`, `nsys`, `evidence`), `truth` (reliefs), `registry` (named scenarios).
"""
