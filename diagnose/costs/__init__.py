"""What a kernel did: FLOPs, bytes and kind of math, from the operator that launched it or from its name.

`registry.cost_of(OpCall)` maps one recorded operator call to its cost; `families.family(name)` maps a
kernel's name to its family; `assign.assign_costs(store)` writes the table `cost`. Formula functions
(`matmul.gemm_cost`, `attention.attention_cost`, `moe.moe_cost`, ...) take plain numbers, so that arithmetic
without recorded shapes can use them too.
"""
