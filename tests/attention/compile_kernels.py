"""Compile the fused kernels for a GPU, which takes none, and print the shared memory of a program.

A script, as the interpreter of `test_fused.py` takes the place of the compiler in a process.
"""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from musicgen.attention import fused, fused_kernels

HOPPER = GPUTarget("cuda", 90, 32)
SUMS = (
    "log_decay",
    "log_norm",
    "log_scale",
    "scales",
    "kv",
    "k_sum",
    "key_sums",
    "kv_end",
    "k_end",
)
SUMS += ("grad_kv", "grad_k_sum", "grad_kv_end", "grad_k_end")
SCALARS = {"norm_factor": "fp32", "num_features": "i32", "length": "i32", "key_mask": "*i1"}


PUBLISHED = {"heads": 8, "e": 64, "m": 128, "width": 64}  # sizes of the published models


def compile_for_a_gpu(kernel, **absent) -> int:
    """Return the bytes of shared memory of a program, with bf16 arrays and a mask."""
    constants = (
        PUBLISHED
        | {"chunk": fused.CHUNK_LENGTH}
        | {"dtype": tl.bfloat16, "precision": "tf32", "eps": None, **absent}
    )
    constants = {name: x for name, x in constants.items() if name in kernel.arg_names}
    types = dict.fromkeys(kernel.arg_names, "*bf16") | dict.fromkeys(SUMS, "*fp32") | SCALARS
    types |= dict.fromkeys(constants, "constexpr")
    signature = {name: types[name] for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=constants)
    options = {"num_warps": fused._WARPS, "num_stages": 1}
    return triton.compile(source, target=HOPPER, options=options).metadata.shared


def main() -> None:
    for name in ("forward_kernel", "queries_kernel", "keys_kernel"):
        for absent in ({}, {"log_decay": None}):
            shared = compile_for_a_gpu(getattr(fused_kernels, name), **absent)
            print(name, "without", *absent, shared, "bytes")
            assert shared <= 227 * 1024  # of a program on Hopper


if __name__ == "__main__":
    main()
