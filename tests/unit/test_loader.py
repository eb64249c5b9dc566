"""The simulated loader beside the real one, on objects built for one trap each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.elf import agree, agree_in, needs_gcc, platform_machine, program, shared, simulated, wrote

if TYPE_CHECKING:
    import pathlib

pytestmark = needs_gcc

DEFINES = "int answer(void){return 42;}"
CALLS = "int answer(void); int call(void){return answer();}"


def test_an_object_without_needs_loads(tmp_path: pathlib.Path) -> None:
    assert agree(shared(tmp_path, "a.so", DEFINES)) == ""


def test_a_missing_library_is_named(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "gone", "libgone.so", DEFINES, "-Wl,-soname,libgone.so")
    path = shared(tmp_path, "a.so", CALLS, "-Lgone", "-lgone")
    assert agree(path) == "libgone.so: cannot open shared object file: No such file or directory"
    assert simulated(path).library == "libgone.so"


def test_an_undefined_symbol_is_named(tmp_path: pathlib.Path) -> None:
    path = shared(tmp_path, "a.so", CALLS)
    assert agree(path).endswith("a.so: undefined symbol: answer")
    assert simulated(path).symbol == "answer"


def test_the_first_relocation_in_order_is_reported(tmp_path: pathlib.Path) -> None:
    source = "extern int z, a; int f(void); int *p = &z; int *q = &a; int call(void){return f();}"
    assert agree(shared(tmp_path, "a.so", source)).endswith(("undefined symbol: z", "undefined symbol: a"))


def test_weak_references_may_stay_undefined(tmp_path: pathlib.Path) -> None:
    source = "int __attribute__((weak)) answer(void); int call(void){return answer ? answer() : 0;}"
    assert agree(shared(tmp_path, "a.so", source)) == ""


def test_a_strong_reference_that_no_relocation_uses_is_never_looked_up(tmp_path: pathlib.Path) -> None:
    path = shared(tmp_path, "a.so", CALLS + DEFINES.replace("answer", "other"))
    data = bytearray(path.read_bytes())
    _forget_relocations_of(data, b"answer")
    path.write_bytes(data)
    assert agree(path) == ""


def test_symbols_of_a_library_opened_for_everyone_are_found(tmp_path: pathlib.Path) -> None:
    brings = shared(tmp_path, "b.so", DEFINES)
    path = shared(tmp_path, "a.so", CALLS)
    assert agree(path, before=[(brings, True)]) == ""
    assert "undefined symbol: answer" in agree(path, before=[(brings, False)])


def test_the_scope_belongs_to_what_is_opened(tmp_path: pathlib.Path) -> None:
    """``a.so`` needs ``answer`` and does not say of whom: it loads below a root that brings it."""
    lacks = shared(tmp_path, "liba.so", CALLS, "-Wl,-soname,liba.so")
    shared(tmp_path, "libb.so", DEFINES, "-Wl,-soname,libb.so")
    root = shared(
        tmp_path,
        "root.so",
        "",
        "-Wl,--no-as-needed",
        "-L.",
        "-la",
        "-lb",
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--unresolved-symbols=ignore-all",
    )
    assert "undefined symbol: answer" in agree(lacks)
    assert agree(root) == ""


def test_origin_is_the_folder_of_the_path_that_was_opened(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "real", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path / "real", "a.so", CALLS, "-L.", "-lb", "-Wl,-rpath,$ORIGIN")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "a.so").symlink_to(path)
    assert agree(path) == ""
    assert "libb.so" in agree(tmp_path / "link" / "a.so")


def test_braces_and_lookalikes_of_origin(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "lib", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    for name, rpath in (("a.so", "${ORIGIN}/lib"), ("b.so", "$ORIGINAL/lib"), ("c.so", "$ORIGIN-x/../lib")):
        agree(shared(tmp_path, name, CALLS, "-Llib", "-lb", f"-Wl,-rpath,{rpath}"))


def test_an_empty_element_is_the_working_folder(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "here", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Lhere", "-lb", "-Wl,-rpath,/nowhere:")
    assert agree(path, cwd=tmp_path / "here") == ""
    assert "libb.so" in agree(path, cwd="/")


def test_rpath_is_inherited_and_runpath_is_not(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "deep", "libc_.so", DEFINES, "-Wl,-soname,libc_.so")
    shared(tmp_path / "mid", "libb.so", CALLS, "-L../deep", "-lc_", "-Wl,-soname,libb.so")
    paths = "-Wl,-rpath,$ORIGIN/mid:$ORIGIN/deep"
    link = ("-Wl,--no-as-needed", "-Lmid", "-lb", "-Wl,-rpath-link,deep", paths)
    old = shared(tmp_path, "old.so", "", *link, "-Wl,--disable-new-dtags")
    new = shared(tmp_path, "new.so", "", *link, "-Wl,--enable-new-dtags")
    assert agree(old) == ""
    assert agree(new) == "libc_.so: cannot open shared object file: No such file or directory"


def test_the_programs_rpath_serves_every_object_and_its_runpath_does_not(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "lib", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Llib", "-lb")
    with_runpath = shared(tmp_path, "r.so", CALLS, "-Llib", "-lb", "-Wl,-rpath,/nowhere")
    old = program(tmp_path, "old", "-Wl,-rpath,$ORIGIN/lib", "-Wl,--disable-new-dtags")
    new = program(tmp_path, "new", "-Wl,-rpath,$ORIGIN/lib", "-Wl,--enable-new-dtags")
    assert agree_in(old, path) == ""
    assert agree_in(new, path).startswith("libb.so: cannot open")
    assert agree_in(old, with_runpath).startswith("libb.so: cannot open")


def test_a_program_that_is_not_position_independent(tmp_path: pathlib.Path) -> None:
    host = program(tmp_path, "host", "-no-pie", "-Wl,-E")
    source = "int puts(const char *); int (*p)(const char *) = puts; int main(void); int (*q)(void) = main;"
    agree_in(host, shared(tmp_path, "a.so", source))


def test_library_path_comes_after_rpath_and_before_runpath(tmp_path: pathlib.Path) -> None:
    for folder, body in (("env", "int other;"), ("own", DEFINES)):
        shared(tmp_path / folder, "libb.so", body, "-Wl,-soname,libb.so")
    environment = {"LD_LIBRARY_PATH": f"{tmp_path / 'env'}"}
    link = ("-Lown", "-lb", "-Wl,-rpath,$ORIGIN/own")
    old = shared(tmp_path, "old.so", CALLS, *link, "-Wl,--disable-new-dtags")
    new = shared(tmp_path, "new.so", CALLS, *link, "-Wl,--enable-new-dtags")
    assert agree(old, environment=environment) == ""
    assert "undefined symbol: answer" in agree(new, environment=environment)


def test_an_object_that_is_mapped_satisfies_its_soname(tmp_path: pathlib.Path) -> None:
    mapped = shared(tmp_path / "x", "anything.so", DEFINES, "-Wl,-soname,libb.so")
    shared(tmp_path / "y", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Ly", "-lb")
    assert agree(path, before=[(mapped, False)]) == ""
    assert "libb.so" in agree(path)


HERE = platform_machine() + b"\x01" + bytes(90)
"""e_machine, e_version and nothing more."""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "file too short"),
        (b"\x7fELF", "file too short"),
        (b"GROUP ( libc.so.6 )\n" * 9, "invalid ELF header"),
        (b"\x7fELF\x02\x02\x01" + bytes(11) + HERE, "ELF file data encoding not little-endian"),
        (b"\x7fELF\x02\x01\x01\x09" + bytes(10) + HERE, "ELF file OS ABI invalid"),
        (b"\x7fELF\x02\x01\x01" + bytes(8) + b"x" + bytes(2) + HERE, "nonzero padding in e_ident"),
        (b"\x7fELF\x02\x01\x01" + bytes(11) + HERE[:2] + bytes(90), "does not match current one"),
    ],
    ids=["empty", "four bytes", "linker script", "big endian", "another system", "padding", "version"],
)
def test_a_bad_file_in_a_search_folder_ends_the_search(
    tmp_path: pathlib.Path, content: bytes, said: str
) -> None:
    shared(tmp_path / "good", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Lgood", "-lb", "-Wl,-rpath,$ORIGIN/bad:$ORIGIN/good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "libb.so").write_bytes(content)
    assert agree(path).endswith(said)
    assert agree(tmp_path / "bad" / "libb.so").endswith(said)


def test_files_for_another_machine_or_class_are_skipped(tmp_path: pathlib.Path) -> None:
    good = shared(tmp_path / "good", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Lgood", "-lb", "-Wl,-rpath,$ORIGIN/bad:$ORIGIN/good")
    data = bytearray(good.read_bytes())
    (tmp_path / "bad").mkdir()
    for change in ((18, 0x28), (4, 1)):
        altered = bytearray(data)
        altered[change[0]] = change[1]
        (tmp_path / "bad" / "libb.so").write_bytes(altered)
        assert agree(path) == ""
        assert agree(tmp_path / "bad" / "libb.so") != ""


def test_a_folder_in_the_place_of_a_library(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "good", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Lgood", "-lb", "-Wl,-rpath,$ORIGIN/bad:$ORIGIN/good")
    (tmp_path / "bad" / "libb.so").mkdir(parents=True)
    agree(path)


def test_a_dangling_link_is_passed_over(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "good", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Lgood", "-lb", "-Wl,-rpath,$ORIGIN/bad:$ORIGIN/good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "libb.so").symlink_to("nothing")
    assert agree(path) == ""


def test_hwcaps_folders_apply_to_rpath(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "lib", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    shared(tmp_path / "lib" / "glibc-hwcaps" / "x86-64-v2", "libb.so", "int x;", "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Llib", "-lb", "-Wl,-rpath,$ORIGIN/lib")
    agree(path)
    (tmp_path / "empty").mkdir()
    bare = shared(tmp_path, "b.so", CALLS, "-Llib", "-lb")
    agree(bare, environment={"LD_LIBRARY_PATH": f"{tmp_path / 'empty'}:{tmp_path / 'lib'}"})


VERSIONS = "V1 { global: answer; local: *; };"


def _versioned(folder: pathlib.Path, script: str = VERSIONS, source: str = DEFINES) -> pathlib.Path:
    wrote(folder, "map", script)
    return shared(folder, "libb.so", source, "-Wl,-soname,libb.so", "-Wl,--version-script,map")


def test_a_missing_version_is_reported_before_any_symbol(tmp_path: pathlib.Path) -> None:
    _versioned(tmp_path / "v1")
    _versioned(tmp_path / "v2", VERSIONS.replace("V1", "V2"))
    source = CALLS + "int gone(void); int also(void){return gone();}"
    path = shared(tmp_path, "a.so", source, "-Lv1", "-lb", "-Wl,-rpath,$ORIGIN/use")
    (tmp_path / "use").symlink_to("v2")
    assert "version `V1' not found (required by " in agree(path)
    assert simulated(path).version == "V1"


def test_a_provider_without_versions_satisfies_any(tmp_path: pathlib.Path) -> None:
    _versioned(tmp_path / "v1")
    shared(tmp_path / "plain", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Lv1", "-lb", "-Wl,-rpath,$ORIGIN/plain")
    agree(path)


def test_a_symbol_that_left_its_version(tmp_path: pathlib.Path) -> None:
    """The version is there and the symbol is not: the search ends at the file that the reference names."""
    _versioned(tmp_path / "full")
    _versioned(tmp_path / "bare", "V1 { global: nothing; local: *; };", "int nothing;")
    other = shared(tmp_path, "other.so", DEFINES)
    path = shared(tmp_path, "a.so", CALLS, "-Lfull", "-lb", "-Wl,-rpath,$ORIGIN/bare")
    assert agree(path).endswith("undefined symbol: answer, version V1")
    agree(path, before=[(other, True)])


def test_a_symbol_may_move_to_another_library(tmp_path: pathlib.Path) -> None:
    _versioned(tmp_path / "full")
    _versioned(tmp_path / "bare", "V1 { global: nothing; local: *; };", "int nothing;")
    shared(tmp_path / "bare", "libd.so", DEFINES, "-Wl,-soname,libd.so")
    path = shared(
        tmp_path,
        "a.so",
        CALLS,
        "-Wl,--no-as-needed",
        "-Lfull",
        "-lb",
        "-Lbare",
        "-ld",
        "-Wl,-rpath,$ORIGIN/bare",
    )
    agree(path)


def test_hidden_versions_do_not_match_an_unversioned_reference(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "plain", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    source = 'int old(void){return 1;} __asm__(".symver old,answer@V1");'
    _versioned(tmp_path / "hidden", "V1 { local: *; };", source)
    path = shared(tmp_path, "a.so", CALLS, "-Lplain", "-lb", "-Wl,-rpath,$ORIGIN/hidden")
    agree(path)
    source = (
        "int one(void){return 1;} int two(void){return 2;} int three(void){return 3;}"
        '__asm__(".symver one,answer@V1"); __asm__(".symver two,answer@V2");'
        '__asm__(".symver three,answer@V3");'
    )
    _versioned(tmp_path / "many", "V1 { local: *; }; V2 {} V1; V3 {} V2;", source)
    other = shared(tmp_path, "b.so", CALLS, "-Lplain", "-lb", "-Wl,-rpath,$ORIGIN/many")
    agree(other)
    source = source.replace("answer@V2", "answer@@V2")
    _versioned(tmp_path / "default", "V1 { local: *; }; V2 {} V1; V3 {} V2;", source)
    agree(shared(tmp_path, "c.so", CALLS, "-Lplain", "-lb", "-Wl,-rpath,$ORIGIN/default"))


def test_libraries_before_versions_before_relocations(tmp_path: pathlib.Path) -> None:
    """Two needed libraries fail in their symbols: the one relocated first is reported."""
    for name in ("one", "two"):
        shared(
            tmp_path,
            f"lib{name}.so",
            f"int gone_{name}(void); int {name}(void){{return gone_{name}();}}",
            f"-Wl,-soname,lib{name}.so",
        )
    root = shared(
        tmp_path,
        "root.so",
        "",
        "-Wl,--no-as-needed",
        "-L.",
        "-lone",
        "-ltwo",
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--unresolved-symbols=ignore-all",
    )
    agree(root)
    shared(
        tmp_path,
        "libone.so",
        "int gone_one(void); int one(void){return gone_one();}",
        "-Wl,-soname,libone.so",
        "-Wl,--no-as-needed",
        "-L.",
        "-ltwo",
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--unresolved-symbols=ignore-all",
    )
    agree(root)


def test_cycles_of_needed_end(tmp_path: pathlib.Path) -> None:
    shared(tmp_path, "libx.so", DEFINES, "-Wl,-soname,libx.so")
    link = ("-Wl,--no-as-needed", "-L.", "-Wl,-rpath,$ORIGIN", "-Wl,--unresolved-symbols=ignore-all")
    shared(tmp_path, "liby.so", CALLS, "-Wl,-soname,liby.so", *link, "-lx")
    path = shared(
        tmp_path,
        "libx.so",
        DEFINES + "int call(void); int k(void){return call();}",
        "-Wl,-soname,libx.so",
        *link,
        "-ly",
    )
    assert agree(path) == ""


def test_auxiliary_may_be_missing_and_filter_may_not(tmp_path: pathlib.Path) -> None:
    for name, flag in (("aux.so", "-Wl,-f,libgone.so"), ("filter.so", "-Wl,-F,libgone.so")):
        agree(shared(tmp_path, name, DEFINES, flag))
    brings = shared(tmp_path, "libgone.so", DEFINES, "-Wl,-soname,libgone.so")
    agree(shared(tmp_path, "user.so", CALLS, "-Wl,-f,libgone.so", "-Wl,-rpath,$ORIGIN"))
    assert brings.exists()


@pytest.mark.parametrize(
    "flags",
    [
        ("-Wl,-Bsymbolic",),
        ("-Wl,-z,nodefaultlib",),
        ("-Wl,-z,nodlopen",),
        ("-Wl,-z,execstack",),
        ("-Wl,-z,now",),
        ("-Wl,--hash-style=sysv",),
        ("-Wl,--hash-style=gnu",),
        ("-Wl,--hash-style=both", "-s"),
    ],
)
def test_linker_flags(tmp_path: pathlib.Path, flags: tuple[str, ...]) -> None:
    agree(shared(tmp_path, "a.so", DEFINES + "int z(void); int y(void){return answer();}", *flags))
    agree(shared(tmp_path, "b.so", CALLS, *flags))


def test_no_default_folders(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "stub", "libz.so.1", DEFINES, "-Wl,-soname,libz.so.1")
    agree(shared(tmp_path, "a.so", CALLS, "-Wl,-z,nodefaultlib", "-Wl,--no-as-needed", "stub/libz.so.1"))


def test_a_program_is_not_a_library(tmp_path: pathlib.Path) -> None:
    assert "position-independent" in agree(program(tmp_path, "pie", "-pie", "-fPIE"))
    assert agree(program(tmp_path, "fixed", "-no-pie")).endswith("cannot dynamically load executable")


def test_unique_and_thread_local_symbols(tmp_path: pathlib.Path) -> None:
    shared(tmp_path, "libb.so", "__thread int answer = 1;", "-Wl,-soname,libb.so")
    source = "extern __thread int answer; int *call(void){return &answer;}"
    agree(shared(tmp_path, "a.so", source, "-L.", "-lb", "-Wl,-rpath,$ORIGIN"))
    agree(shared(tmp_path, "b.so", source))
    unique = '__asm__(".type answer,@gnu_unique_object\\n.globl answer\\n.data\\nanswer: .long 1\\n");'
    shared(tmp_path, "libu.so", unique, "-Wl,-soname,libu.so")
    user = "extern int answer; int *call(void){return &answer;}"
    agree(shared(tmp_path, "c.so", user, "-L.", "-lu", "-Wl,-rpath,$ORIGIN"))


def test_an_indirect_function(tmp_path: pathlib.Path) -> None:
    source = (
        "static int mine(void){return 1;} static void *pick(void){return mine;}"
        'int answer(void) __attribute__((ifunc("pick")));'
    )
    shared(tmp_path, "libb.so", source, "-Wl,-soname,libb.so")
    agree(shared(tmp_path, "a.so", CALLS, "-L.", "-lb", "-Wl,-rpath,$ORIGIN"))


def test_hidden_and_local_definitions_do_not_count(tmp_path: pathlib.Path) -> None:
    shared(tmp_path / "full", "libb.so", DEFINES, "-Wl,-soname,libb.so")
    hidden = '__attribute__((visibility("hidden"))) ' + DEFINES
    shared(tmp_path / "use", "libb.so", hidden, "-Wl,-soname,libb.so")
    path = shared(tmp_path, "a.so", CALLS, "-Lfull", "-lb", "-Wl,-rpath,$ORIGIN/use")
    assert agree(path).endswith("undefined symbol: answer")


@pytest.mark.parametrize("source", [DEFINES, "int z, *p = &z; char big[1 << 16] = {1}; " + DEFINES])
def test_a_file_cut_short(tmp_path: pathlib.Path, source: str) -> None:
    """It kills the process, or loads where nobody touches what is missing: at each length as in reality."""
    path = shared(tmp_path, "a.so", source, "-s")
    whole = path.read_bytes()
    said = set()
    for length in (*range(512, len(whole), max(1024, len(whole) // 24)), len(whole)):
        path.write_bytes(whole[:length])
        said.add(agree(path)[:8])
    assert {"signal 7", ""} <= said


def test_a_processor_level_that_is_not_there(tmp_path: pathlib.Path) -> None:
    note = (
        '__asm__(".section .note.gnu.property,\\"a\\"\\n.balign 8\\n.long 4,16,5\\n.asciz \\"GNU\\"\\n'
        '.long 0xc0008002,4,{level}\\n.long 0\\n.text\\n");'
    )
    for level in (1, 2, 0x40000000):
        agree(shared(tmp_path, f"l{level}.so", note.format(level=level) + DEFINES))


def _forget_relocations_of(data: bytearray, name: bytes) -> None:
    """Turn the relocations of one symbol into R_X86_64_NONE."""
    count, size = int.from_bytes(data[60:62], "little"), int.from_bytes(data[58:60], "little")
    start = int.from_bytes(data[40:48], "little")
    sections = [data[start + i * size : start + (i + 1) * size] for i in range(count)]

    def word(section: bytearray, at: int, width: int) -> int:
        return int.from_bytes(section[at : at + width], "little")

    symbols = next(section for section in sections if word(section, 4, 4) == 11)
    strings = word(sections[word(symbols, 40, 4)], 24, 8)
    first = word(symbols, 24, 8)
    for section in sections:
        if word(section, 4, 4) != 4:
            continue
        for at in range(word(section, 24, 8), word(section, 24, 8) + word(section, 32, 8), 24):
            index = int.from_bytes(data[at + 12 : at + 16], "little")
            offset = int.from_bytes(data[first + index * 24 : first + index * 24 + 4], "little")
            if data[strings + offset :].startswith(name + b"\0"):
                data[at + 8 : at + 16] = bytes(8)
