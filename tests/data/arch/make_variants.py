"""Build the GPU code samples of this folder: small shared objects with a kernel for other GPUs each.

    python3 make_variants.py OUT --nvcc /usr/local/cuda/bin/nvcc [--newer-nvcc PATH]

``--newer-nvcc`` is a compiler of CUDA 13.1 or later: its PTX is newer than a driver of CUDA 13.0 reads.
Afterwards ``launch.py`` writes down, on a real GPU, what becomes of each.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

Changes = dict[str, tuple["str | None", "str | None"]]
SOURCE = Path(__file__).with_name("kernel.cu")
COMMON = ("-Xcompiler", "-fPIC", "-cudart", "shared", "-O1", "-D_FORTIFY_SOURCE=0")
LINK = ("-shared", "-cudart", "shared", "-Xlinker", "-s,-z,noseparate-code")


def sass(*archs: str) -> tuple[str, ...]:
    """Return the options for machine code of ``archs`` (``90a``)."""
    return tuple(f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs)


def ptx(*archs: str) -> tuple[str, ...]:
    """Return the options for PTX of ``archs``."""
    return tuple(f"-gencode=arch=compute_{arch},code=compute_{arch}" for arch in archs)


CUBINS = (
    "87",
    "88",
    "100a",
    "100f",
    "103",
    "103a",
    "103f",
    "110",
    "110a",
    "110f",
    "120a",
    "120f",
    "121",
    "121a",
    "121f",
)
VIRTUAL = ("86", "87", "88", "100a", "100f", "103", "103f", "110", "120a", "120f", "121")
COMPRESS_ALL = ("-Xfatbin", "-compress-all")

SINGLE = {
    **{f"sass{arch}": sass(arch) for arch in CUBINS},
    **{f"ptx{arch}": ptx(arch) for arch in VIRTUAL},
    **{
        f"sass90_{mode}": sass("90") + COMPRESS_ALL + (f"-compress-mode={mode}",)
        for mode in ("default", "size", "speed", "balance", "none")
    },
    **{
        f"ptx80_{mode}": (*ptx("80"), f"-compress-mode={mode}")
        for mode in ("default", "size", "speed", "balance", "none")
    },
    "sass80_speed": sass("80") + COMPRESS_ALL + ("-compress-mode=speed",),
    "sass90a_speed": sass("90a") + COMPRESS_ALL + ("-compress-mode=speed",),
    "multi_90a_ptx75": sass("90a") + ptx("75"),
    "multi_ptx75_ptx80": ptx("75", "80"),
    "multi_80_86_ptx90a": sass("80", "86") + ptx("90a"),
    "multi_75_ptx75_ptx120": sass("75") + ptx("75", "120"),
    "multi_90_ptx90": sass("90") + ptx("90"),
    "multi_100f_120a": sass("100f", "120a"),
    "multi_89_ptx100": sass("89") + ptx("100"),
    "multi_80_90_90a_100f_120a": sass("80", "89", "90", "90a", "100f", "120a"),
    "plain": (),
    "arch_all": ("-arch=all",),
    "arch_all_major": ("-arch=all-major",),
    "empty_kernel": (*sass("90"), "-DNO_KERNEL"),
}
"""Samples of one translation unit: name → nvcc's options."""

PAIRS = {
    "pair_90_80": (sass("90"), sass("80")),
    "pair_80ptx_90": (sass("80") + ptx("80"), sass("90")),
    "pair_90_90a": (sass("90"), sass("90a")),
    "pair_120_100": (sass("120"), sass("100")),
}
"""Two units with a kernel each, compiled apart: ``hostenv_run`` and ``hostenv_run_second``."""

RELOCATABLE = {
    "rdc_90": (sass("90"), sass("90"), sass("90")),
    "rdc_80": (sass("80"), sass("80"), sass("80")),
    "rdc_ptx80": (ptx("80"), ptx("80"), ptx("80")),
    "rdc_86_ptx80": (sass("86") + ptx("80"),) * 3,
    "rdc_90_ptx80": (sass("90") + ptx("80"),) * 3,
    "rdc_120_ptx120": (sass("120") + ptx("120"),) * 3,
    "rdc_86_half_ptx80": (sass("86") + ptx("80"), sass("86"), sass("86")),
    "rdc_90_linked_86": (sass("86", "90"), sass("86", "90"), sass("86")),
    "rdc_lto90": (
        ("-gencode=arch=compute_90,code=lto_90",),
        ("-gencode=arch=compute_90,code=lto_90",),
        (*sass("90"), "-dlto"),
    ),
    "rdc_lto80_80": (
        ("-gencode=arch=compute_80,code=[lto_80,compute_80]",),
        ("-gencode=arch=compute_80,code=[lto_80,compute_80]",),
        (*sass("80"), "-dlto"),
    ),
}
"""Relocatable device code: options of the caller's unit, of the callee's unit, and of the device link."""

BARE = {"bare_90": sass("90"), "bare_80": sass("80")}
"""Samples whose wrapper's pointer stands in the relocation only: name → options."""

NEWER = {
    "newer_sass90": sass("90"),
    "newer_ptx80": ptx("80"),
    "newer_ptx90": ptx("90"),
    "newer_90_ptx90": sass("90") + ptx("90"),
    "newer_80_ptx80": sass("80") + ptx("80"),
    "newer_ptx120": ptx("120"),
}
"""Samples made by the newer compiler."""

PATCHED: dict[str, tuple[tuple[str, ...], Changes]] = {
    "isa_text": (ptx("80"), {"80": ("9.3", None)}),
    "isa_header": (ptx("80"), {"80": (None, "9.3")}),
    "isa_91": (ptx("80"), {"80": ("9.1", "9.1")}),
    "isa_88": (ptx("80"), {"80": ("8.8", "8.8")}),
    "isa_70": (ptx("80"), {"80": ("7.0", "7.0")}),
    "isa_new_over_old": (ptx("80", "90"), {"90": ("9.3", "9.3")}),
    "isa_old_over_new": (ptx("80", "90"), {"80": ("9.3", "9.3")}),
    "isa_new_beside_80": (sass("80") + ptx("80"), {"80": ("9.3", "9.3")}),
    "isa_new_beside_90": (sass("90") + ptx("90"), {"90": ("9.3", "9.3")}),
    "isa_90_over_90a": (ptx("90", "90a"), {"90": ("9.3", "9.3")}),
    "isa_90a_over_90": (ptx("90", "90a"), {"90a": ("9.3", "9.3")}),
    "isa_new_for_120": (ptx("120"), {"120": ("9.3", "9.3")}),
}
"""PTX whose ``.version`` (in the text, in the entry's header) is set by hand: arch → (text, header)."""


class Toolkit:
    """One nvcc, as a program that compiles and links in a scratch folder."""

    def __init__(self, nvcc: str, scratch: Path) -> None:
        self.nvcc = nvcc
        self.scratch = scratch

    def run(self, *arguments: str) -> None:
        """Run nvcc, showing what it was given where it fails."""
        done = subprocess.run((self.nvcc, *arguments), capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(f"not built: {self.nvcc} {' '.join(arguments)}\n{done.stdout}{done.stderr}\n")

    def compile(self, name: str, *options: str) -> str:
        """Compile the source into an object file and return its path."""
        target = str(self.scratch / f"{name}.o")
        self.run(*COMMON, *options, "-c", str(SOURCE), "-o", target)
        return target

    def single(self, out: Path, name: str, options: tuple[str, ...]) -> None:
        """Build a sample of one unit."""
        link = [option for option in options if option.startswith(("-gencode", "-arch"))]
        self.run(*LINK, *link, self.compile(name, *options), "-o", str(out / f"{name}.so"))

    def pair(self, out: Path, name: str, options: tuple[tuple[str, ...], ...]) -> None:
        """Build a sample of two units that know nothing of each other."""
        first = self.compile(f"{name}-1", *options[0])
        second = self.compile(f"{name}-2", *options[1], "-DNAME=hostenv_run_second")
        self.run(*LINK, first, second, "-o", str(out / f"{name}.so"))

    def relocatable(self, out: Path, name: str, options: tuple[tuple[str, ...], ...]) -> None:
        """Build a sample whose kernel calls a device function of another unit."""
        caller = self.compile(f"{name}-1", *options[0], "-rdc=true", "-DOUTSIDE")
        helper = self.scratch / f"{name}.cu"
        helper.write_text("__device__ int add(int x) { return x + 41; }\n", encoding="ascii")
        callee = str(self.scratch / f"{name}-2.o")
        self.run(*COMMON, *options[1], "-rdc=true", "-c", str(helper), "-o", callee)
        self.run(
            *LINK, "-rdc=true", "-cudadevrt=none", *options[2], caller, callee, "-o", str(out / f"{name}.so")
        )

    def patched(self, out: Path, name: str, options: tuple[str, ...], changes: Changes) -> None:
        """Build a sample of one unit, then change what its PTX says of its version."""
        self.single(out, name, (*options, "-compress-mode=none"))
        patch(out / f"{name}.so", changes)

    def bare(self, out: Path, name: str, options: tuple[str, ...]) -> None:
        """Build a sample whose wrapper points nowhere until it is relocated, as lld leaves it."""
        self.single(out, name, options)
        path = out / f"{name}.so"
        data = bytearray(path.read_bytes())
        at = data.rindex(struct.pack("<II", 0x466243B1, 1))
        data[at + 8 : at + 16] = bytes(8)
        path.write_bytes(data)


def patch(path: Path, changes: Changes) -> None:
    """Set the PTX version in the text and in the entry's header of uncompressed PTX entries."""
    data = bytearray(path.read_bytes())
    for arch, (text, header) in changes.items():
        at = data.index(f"\n.target sm_{arch}\n".encode())
        start = data.rindex(b".version 9.0", 0, at)
        if text:
            data[start : start + 12] = f".version {text}".encode()
        if header:
            entry = data.rindex(struct.pack("<HH", 1, 0x101), 0, start)
            major, minor = map(int, header.split("."))
            struct.pack_into("<HH", data, entry + 24, minor, major)
    path.write_bytes(data)


def main() -> None:
    """Build everything into the given folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--newer-nvcc")
    parser.add_argument("--only", default="", help="beginning of the names wanted")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        toolkit = Toolkit(chosen.nvcc, Path(scratch))
        builds = {name: partial(toolkit.single, chosen.out, name, given) for name, given in SINGLE.items()}
        builds |= {name: partial(toolkit.pair, chosen.out, name, given) for name, given in PAIRS.items()}
        builds |= {
            name: partial(toolkit.relocatable, chosen.out, name, given) for name, given in RELOCATABLE.items()
        }
        builds |= {
            name: partial(toolkit.patched, chosen.out, name, *given) for name, given in PATCHED.items()
        }
        builds |= {name: partial(toolkit.bare, chosen.out, name, given) for name, given in BARE.items()}
        if chosen.newer_nvcc:
            newer = Toolkit(chosen.newer_nvcc, Path(scratch))
            builds |= {name: partial(newer.single, chosen.out, name, given) for name, given in NEWER.items()}
        for name, build in builds.items():
            if name.startswith(chosen.only):
                build()


if __name__ == "__main__":
    main()
