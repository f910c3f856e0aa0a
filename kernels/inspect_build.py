"""Compile every kernel for real GPUs without having one, and print what the compiler made of it.

`python -m kernels.inspect_build [--target sm_90 ...] [--kernel hidden ...] [--json FILE]`

Every kernel x every kept tile size x {fp32, bf16} x target: registers per thread, spilled bytes per thread, shared
memory per program in bytes, and how many tensor-core instructions stand in the machine code.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernels import launch

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64)}
"""Backend, architecture and threads per warp, as the Triton compiler names them."""

TENSOR_CORE = {"sm_80": r"\bHMMA\.", "sm_90": r"\bHGMMA\.", "gfx942": r"\bv_mfma_"}

SPILL_BOUND = 16
"""Bytes per thread that a kept configuration may spill: four registers, traded for more programs at a time."""

COUNTS = {"b", "n", "t", "parts", "across", "views", "count", "blocks"}
"""Arguments that may be any number; n is a width in symmetric products."""


@dataclass(frozen=True)
class Build:
    """One kernel with everything that the compiler must know."""

    name: str
    kernel: Any
    dtype: str
    target: str
    constants: dict[str, Any]
    warps: int
    stages: int
    has_products: bool
    fp32_pointers: tuple[str, ...] = ()

    def describe(self) -> str:
        """Name, constants, warps and stages on one line."""
        shown = ", ".join(f"{k}={v}" for k, v in self.constants.items() if k not in ("PRECISION", "EPS"))
        return f"{self.name}[{shown}] warps={self.warps} stages={self.stages}"


@dataclass(frozen=True)
class Report:
    """What came out of one build."""

    kernel: str
    dtype: str
    target: str
    registers: int
    spilled: int
    shared: int
    tensor_core: int
    faults: tuple[str, ...]


def all_builds(targets: list[str] | None = None, kernels: list[str] | None = None) -> Iterator[Build]:
    """Every build that is kept, for these targets and kernels (all if not given)."""
    for target in targets or list(TARGETS):
        for name, kernel, flags, fp32_pointers in _tiled_kernels():
            for dtype in ("bf16", "fp32"):
                for tiles in launch.choices(name, target, dtype == "fp32"):
                    sizes = {"BM": tiles.m, "BN": tiles.n, "BK": tiles.k, "PRECISION": "ieee"}
                    if not kernels or name in kernels:
                        yield Build(
                            name, kernel, dtype, target, flags | sizes, tiles.warps, tiles.stages, True, fp32_pointers
                        )
        for name, kernel, constants, warps, fp32_pointers in _untiled_kernels():
            for dtype in ("bf16", "fp32"):
                if not kernels or name in kernels:
                    yield Build(name, kernel, dtype, target, constants, warps, 2, False, fp32_pointers)


def compile_build(build: Build) -> Report:
    """Compile for the target and read registers, spills, shared memory and tensor-core instructions."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {**_unit_strides(build.kernel.arg_names), **build.constants}
    signature, attributes = {}, {}
    for i, name in enumerate(build.kernel.arg_names):
        signature[name] = "constexpr" if name in constants else _type_of(name, build)
        # PyTorch aligns its memory, and widths are multiples of 16 in every published model; numbers of tokens are not.
        aligned = signature[name] == "i32" and name not in COUNTS - ({"n"} if build.name == "symmetric" else set())
        if aligned or signature[name].startswith("*"):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=build.kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": build.warps, "num_stages": build.stages}
    binary = triton.compile(source, target=GPUTarget(*TARGETS[build.target]), options=options)
    if build.target.startswith("gfx"):
        registers, spilled, code = _read_amd(binary.asm["amdgcn"])
    else:
        registers, spilled, code = _read_nvidia(binary.asm["cubin"])
    shared = binary.metadata.shared
    tensor_core = len(re.findall(TENSOR_CORE[build.target], code))
    faults = []
    if spilled > SPILL_BOUND:
        faults.append(f"spills {spilled} bytes")
    if shared > launch.SHARED_LIMIT[build.target]:
        faults.append(f"needs {shared} bytes of shared memory, limit {launch.SHARED_LIMIT[build.target]}")
    if build.has_products and build.dtype == "bf16" and not tensor_core:
        faults.append("no tensor-core instruction")
    return Report(build.describe(), build.dtype, build.target, registers, spilled, shared, tensor_core, tuple(faults))


def _tiled_kernels() -> list[tuple[str, Any, dict[str, int], tuple[str, ...]]]:
    """(name in the table, kernel, flags, pointers that are always fp32) of everything that is launched by the table.

    The two symmetric products are gram gram + gram (row-major right side) and x x^T (column-major).
    """
    from kernels.triton_fast_weights import second_order_kernel
    from kernels.triton_linear import token_product_kernel
    from kernels.triton_orthogonalize import symmetric_kernel
    from kernels.triton_rays import embed_rays_kernel, ray_weight_kernel
    from kernels.triton_swiglu import gradient_kernel, hidden_kernel

    given = ("c2w", "intrinsics", "images")

    return [
        ("hidden", hidden_kernel, {}, ()),
        ("gradient", gradient_kernel, {"HAS_RATES": True, "GIVEN": False}, ("rates",)),
        ("gradient", gradient_kernel, {"HAS_RATES": False, "GIVEN": False}, ()),
        ("gradient", gradient_kernel, {"HAS_RATES": False, "GIVEN": True}, ()),
        ("second_order", second_order_kernel, {}, ("rates", "d_rates")),
        ("token_product", token_product_kernel, {"HAS_RATES": True}, ("rates", "out")),
        ("token_product", token_product_kernel, {"HAS_RATES": False}, ("out",)),
        ("symmetric", symmetric_kernel, {"HAS_ADDEND": True, "b_m": 1}, ()),
        ("symmetric", symmetric_kernel, {"HAS_ADDEND": False, "b_n": 1}, ()),
        ("rays", embed_rays_kernel, {"PATCH": 8, "HAS_IMAGES": True}, given),
        ("rays", embed_rays_kernel, {"PATCH": 8, "HAS_IMAGES": False}, given),
        ("ray_weight", ray_weight_kernel, {"PATCH": 8, "HAS_IMAGES": True}, (*given, "out")),
        ("ray_weight", ray_weight_kernel, {"PATCH": 8, "HAS_IMAGES": False}, (*given, "out")),
    ]


def _untiled_kernels() -> list[tuple[str, Any, dict[str, Any], int, tuple[str, ...]]]:
    """(name, kernel, constants, warps, pointers that are always fp32) of what has no products; rows as in width 768."""
    from kernels import triton_norm as norm
    from kernels import triton_rows as rows

    (columns, warps), (length, walked_columns, walking_warps) = norm.WHOLE_TILE, norm.WALKING_TILE
    eps = {"EPS": norm.NORM_EPS}
    whole = {**eps, "BM": norm.WHOLE_ROWS, "BN": columns, "WHOLE": True}
    walked = {**eps, "BM": length, "BN": walked_columns}
    height, width = rows.rows_held(768)
    held, unit = {"BM": height, "BN": width}, {"EPS": rows.UNIT_EPS}
    return [
        ("norm", norm.add_and_restore_norm_kernel, whole, warps, ()),
        ("norm", norm.add_and_restore_norm_kernel, {**walked, "WHOLE": False}, walking_warps, ()),
        ("norm_backward", norm.restore_norm_backward_kernel, walked, walking_warps, ()),
        ("silu_unit", rows.silu_unit_kernel, {**held, **unit}, rows.WARPS, ()),
        ("silu_unit_backward", rows.silu_unit_backward_kernel, {**held, **unit}, rows.WARPS, ()),
        ("rms_norm", rows.rms_norm_kernel, held, rows.WARPS, ("weight",)),
        ("rms_norm_backward", rows.rms_norm_backward_kernel, held, rows.WARPS, ("weight", "partial")),
    ]


def _unit_strides(names: list[str]) -> dict[str, int]:
    """Strides that are 1 for row-major operands: the launcher makes a constant of every argument that equals 1."""
    units = {"a_p", "b_q"} if "part_tokens" in names else {"x_d", "v_d", "w_f", "k_d", "a_n", "w_p", "i_w"}
    return {name: 1 for name in names if name in units}


def _type_of(name: str, build: Build) -> str:
    if name in build.fp32_pointers:
        return "*fp32"
    if name in ("alpha", "beta", "eps"):
        return "fp32"
    is_size = name in COUNTS | {"d", "f", "m", "o", "p", "q", "part_tokens", "tiles_f"}
    # `b` is a tensor beside `a` and a number of matrices elsewhere.
    if (is_size and not (name == "b" and "a" in build.kernel.arg_names)) or re.fullmatch(r"[a-z]\w?_[a-z]", name):
        return "i32"
    return f"*{build.dtype}"


def _read_nvidia(cubin: bytes) -> tuple[int, int, str]:
    """(registers, stack bytes, machine code) of a cubin; the stack of these kernels holds spilled registers only."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, code = (
            subprocess.run([tools / "cuobjdump", option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump printed no register count: {usage}")
    return int(found[1]), int(found[2]), code


def _read_amd(code: str) -> tuple[int, int, str]:
    def number(field: str) -> int:
        found = re.search(rf"\.{field}:\s+(\d+)", code)
        return int(found[1]) if found else 0

    # Registers are 4 bytes wide.
    return number("vgpr_count"), 4 * number("vgpr_spill_count"), code


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if a build has a fault."""
    parser = argparse.ArgumentParser(prog="python -m kernels.inspect_build", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", nargs="*", choices=list(TARGETS), help="GPU architectures (default: all)")
    parser.add_argument("--kernel", nargs="*", help="kernels by their name in the table (default: all)")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args(arguments)
    if launch.interpreting():
        parser.error("unset TRITON_INTERPRET: the interpreter compiles nothing")
    reports = []
    print(f"{'target':8}{'dtype':6}{'registers':>10}{'spilled':>8}{'shared':>8}{'tensor':>7}  kernel", flush=True)
    for build in all_builds(options.target, options.kernel):
        report = compile_build(build)
        reports.append(report)
        faults = f"  FAULT: {'; '.join(report.faults)}" if report.faults else ""
        print(
            f"{report.target:8}{report.dtype:6}{report.registers:10}{report.spilled:8}{report.shared:8}"
            f"{report.tensor_core:7}  {report.kernel}{faults}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(report) for report in reports], indent=1))
    faulty = sum(bool(report.faults) for report in reports)
    print(f"{len(reports)} builds, {faulty} with faults")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
