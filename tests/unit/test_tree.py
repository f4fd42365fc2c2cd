#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules about the tree itself: who may include whom, licence lines, names, sizes. Prints TAP."""
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.abspath(sys.argv[1])
FILE_BYTES_MAX = 1 << 20

TOP_LEVEL = {
    "meson.build", "meson_options.txt", "meson.options", "README.md", "CONTRIBUTING.md", "LICENSE",
    "shm", "runtime", "kernels", "clients", "tools", "tests", "bench", "systemd", "docs",
}
SKIPPED_FOLDERS = {".git", "build", "__pycache__"}

# Folder -> prefixes that its files may include. The longest folder that matches decides.
# None: anything. Inside runtime everything may use base; only the daemon joins sched to io.
ARROWS = {
    "shm": ["shm/"],
    "kernels": ["kernels/"],
    "runtime": ["runtime/", "shm/", "kernels/"],
    "runtime/base": ["runtime/base/"],
    "runtime/model": ["runtime/base/", "runtime/model/", "kernels/"],
    "runtime/text": ["runtime/base/", "runtime/text/", "runtime/model/"],
    "runtime/sample": ["runtime/base/", "runtime/sample/", "runtime/text/", "kernels/"],
    "runtime/kv": ["runtime/base/", "runtime/kv/"],
    "runtime/exec": ["runtime/base/", "runtime/exec/", "runtime/model/", "runtime/kv/", "kernels/"],
    "runtime/sched": ["runtime/base/", "runtime/sched/", "runtime/kv/", "runtime/text/",
                      "runtime/sample/", "runtime/exec/"],
    "runtime/tune": ["runtime/base/", "runtime/tune/", "runtime/model/", "runtime/kv/", "runtime/exec/",
                     "kernels/"],
    "runtime/io": ["runtime/base/", "runtime/io/", "shm/"],
    "clients": ["clients/"],
    "clients/lib": ["clients/lib/", "clients/tokenring.h", "shm/"],
    "clients/examples": ["clients/tokenring.h"],
    "tools": ["tools/", "clients/tokenring.h", "clients/lib/", "shm/"],
    "tools/quantize": ["tools/", "runtime/model/", "runtime/text/", "kernels/", "shm/", "clients/"],
    "tools/ringctl_tune": ["tools/", "runtime/base/", "runtime/tune/", "runtime/cache_path.h", "kernels/cpu_kernels.h"],
    "tools/inspect": ["tools/", "runtime/model/", "runtime/text/", "kernels/", "shm/", "clients/"],
    "tests": None,
    "bench": None,
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

# What shm/ and the client library may include with <>: the C library and the kernel's headers.
LIBC_HEADER = re.compile(
    r"^(assert|complex|ctype|errno|fcntl|fenv|float|immintrin|inttypes|iso646|limits|locale|math|poll"
    r"|pthread|sched|setjmp|signal|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib"
    r"|stdnoreturn|string|strings|syscall|tgmath|time|uchar|unistd|wchar|wctype"
    r"|tokenring/\w+|linux/\w+|sys/\w+|asm/\w+|netinet/\w+|arpa/\w+)\.h$")

SOURCE = re.compile(r"\.(c|h|py|sh|cu|cuh|map)$|(^|/)meson\.build$")
SCRIPT_SHEBANG = re.compile(rb"^#!.*\b(bash|sh|python3)\b")
# Spelled apart, so that this file does not match itself.
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")


def tree_files():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS
                            and not f.startswith("build-"))
        for name in sorted(names):
            yield os.path.relpath(os.path.join(folder, name), ROOT)


def read(path):
    with open(os.path.join(ROOT, path), "rb") as file:
        return file.read()


def text(path):
    return read(path).decode("utf-8", errors="replace")


def is_source(path):
    if SOURCE.search(path):
        return True
    return "." not in os.path.basename(path) and bool(SCRIPT_SHEBANG.match(read(path)[:80]))


def longest_folder(path):
    folder = os.path.dirname(path)
    stem = os.path.splitext(path)[0]
    if stem in ARROWS:
        return stem
    while folder and folder not in ARROWS:
        folder = os.path.dirname(folder)
    return folder


def c_files(files):
    return [f for f in files if f.endswith((".c", ".h", ".cu", ".cuh", ".cc", ".cpp"))]


def every_include_follows_an_arrow_of_the_design(files):
    for path in c_files(files):
        folder = longest_folder(path)
        allowed = ARROWS.get(folder)
        if allowed is None:
            continue
        for quote, name in INCLUDE.findall(text(path)):
            if quote == '"' and not any(name.startswith(prefix) for prefix in allowed):
                yield f"{path} includes {name}; {folder}/ may include {', '.join(allowed)}"


def every_quoted_include_is_rooted_and_exists(files):
    for path in c_files(files):
        for quote, name in INCLUDE.findall(text(path)):
            if quote == '"' and not os.path.isfile(os.path.join(ROOT, name)):
                yield f"{path} includes {name}: no such file below the root"


def shm_and_the_client_library_include_libc_only(files):
    for path in c_files(files):
        if not path.startswith(("shm/", "clients/lib/", "clients/tokenring.h")):
            continue
        for quote, name in INCLUDE.findall(text(path)):
            if quote == "<" and not LIBC_HEADER.match(name):
                yield f"{path} includes <{name}>"


def only_the_daemon_includes_both_sched_and_io(files):
    for path in c_files(files):
        if not path.startswith("runtime/") or os.path.dirname(path) == "runtime":
            continue
        names = [name for _, name in INCLUDE.findall(text(path))]
        if any(n.startswith("runtime/sched/") for n in names) and \
                any(n.startswith("runtime/io/") for n in names):
            yield f"{path} joins runtime/sched to runtime/io"


def kernels_include_no_header_of_a_library_but_libc_and_cuda(files):
    for path in c_files(files):
        if not path.startswith("kernels/"):
            continue
        for quote, name in INCLUDE.findall(text(path)):
            if quote == "<" and not LIBC_HEADER.match(name) and \
                    not re.match(r"(cpuid|x86intrin|cu\w+|nv\w+|mma)\.h$", name):
                yield f"{path} includes <{name}>"


def every_source_file_names_its_licence_in_its_first_two_lines(files):
    for path in files:
        if path.endswith("meson.build") or not is_source(path):
            continue
        head = text(path).splitlines()[:2]
        if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
            yield path


def the_top_level_has_only_the_names_of_the_design(_files):
    for name in sorted(os.listdir(ROOT)):
        if name.startswith(".") or name in TOP_LEVEL or name in SKIPPED_FOLDERS \
                or name.startswith("build-"):
            continue
        yield name


def no_file_is_larger_than_one_megabyte(files):
    for path in files:
        size = os.path.getsize(os.path.join(ROOT, path))
        if size > FILE_BYTES_MAX:
            yield f"{path}: {size} bytes"


def nothing_is_marked_as_unfinished(files):
    for path in files:
        if not is_source(path) and not path.endswith(".md"):
            continue
        for number, line in enumerate(text(path).splitlines(), 1):
            if UNFINISHED.search(line):
                yield f"{path}:{number}: {line.strip()}"


def no_file_is_named_utils_common_misc_or_helpers(files):
    for path in files:
        if re.search(r"(^|[/_])(utils?|common|misc|helpers?)\.\w+$", path):
            yield path


def the_files_that_the_readme_names_exist(files):
    for page in ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/abi.md"):
        if page not in files:
            yield f"{page} is missing"
            continue
        pattern = r"`((?:shm|runtime|kernels|clients|tools|tests|bench|systemd|docs)/[\w./-]+)`"
        for name in re.findall(pattern, text(page)):
            name = name.rstrip(".")
            if not os.path.exists(os.path.join(ROOT, name)) and not name.startswith("build/"):
                yield f"{page} names {name}"


def each_function_in_the_life_of_a_request_is_where_the_page_says(_files):
    path_in = re.compile(r"`((?:shm|runtime|kernels|clients)/[\w./-]+\.[ch])`")
    for row in text("docs/architecture.md").splitlines():
        if not re.match(r"\| \d+ \|", row):
            continue
        paths = [p for p in path_in.findall(row) if os.path.isfile(os.path.join(ROOT, p))]
        sources = "\n".join(text(path) for path in paths)
        for name in re.findall(r"`(\w+)\(\)`", row):
            if not re.search(rf"^[a-z][\w \t*]*\b{name}\(", sources, re.MULTILINE):
                yield f"{name}() is in none of {', '.join(paths)}"


def scripts_are_executable_and_stop_at_the_first_error(files):
    for path in files:
        if not re.match(rb"^#!.*\bbash\b", read(path)[:80]):
            continue
        if not os.access(os.path.join(ROOT, path), os.X_OK):
            yield f"{path} is not executable"
        if "set -euo pipefail" not in text(path):
            yield f"{path} lacks set -euo pipefail"


def c_number(expression):
    """Value of a constant such as 4096, 1u << 20 or TKR_INFLIGHT_MAX."""
    expression = expression.strip()
    if expression.startswith("TKR_"):
        return int(re.search(rf"#define {expression} (\d+)", text("shm/abi.h")).group(1))
    base, _, shift = expression.partition("<<")
    return int(base.strip().rstrip("u")) << int(shift or 0)


def every_setting_stands_in_the_example_configuration_with_its_default_and_range(_files):
    source = text("runtime/config.c")
    paragraphs = text("systemd/tokenringd.yaml").split("\n\n")
    keys = {key: (value, paragraph) for paragraph in paragraphs
            for key, value in re.findall(r"^(\w+): (.+)$", paragraph, re.MULTILINE)}
    settings = re.findall(r"^ +X\((\w+), (TEXT|NUMBER|BOOL), ([^,]+), ([^,]+), ([^,]+)\) *\\?$", source,
                          re.MULTILINE)
    for name in sorted({setting[0] for setting in settings} ^ set(keys)):
        yield f"{name} is only in {'tokenringd.yaml' if name in keys else 'runtime/config.c'}"
    for name, kind, preset, low, high in settings:
        value, paragraph = keys.get(name, ("", ""))
        limits = f"{c_number(low)} .. {c_number(high)}"
        if kind == "BOOL" and value != ("true" if c_number(preset) else "false"):
            yield f"{name}: {value} in tokenringd.yaml is not the default"
        if kind != "NUMBER":
            continue
        if value != str(c_number(preset)):
            yield f"{name}: {value} in tokenringd.yaml, {c_number(preset)} in the code"
        if limits not in paragraph:
            yield f"{name}: its paragraph lacks the range {limits}"


def shellcheck_finds_nothing_in_the_scripts(files):
    scripts = [f for f in files if re.match(rb"^#!.*\b(ba)?sh\b", read(f)[:80])]
    run = subprocess.run(["shellcheck", "-f", "gcc"] + scripts, cwd=ROOT, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if run.returncode:
        yield from run.stdout.splitlines() or [f"shellcheck: exit {run.returncode}"]


RULES = [
    every_include_follows_an_arrow_of_the_design,
    every_quoted_include_is_rooted_and_exists,
    shm_and_the_client_library_include_libc_only,
    only_the_daemon_includes_both_sched_and_io,
    kernels_include_no_header_of_a_library_but_libc_and_cuda,
    every_source_file_names_its_licence_in_its_first_two_lines,
    the_top_level_has_only_the_names_of_the_design,
    no_file_is_larger_than_one_megabyte,
    nothing_is_marked_as_unfinished,
    no_file_is_named_utils_common_misc_or_helpers,
    the_files_that_the_readme_names_exist,
    each_function_in_the_life_of_a_request_is_where_the_page_says,
    scripts_are_executable_and_stop_at_the_first_error,
    every_setting_stands_in_the_example_configuration_with_its_default_and_range,
    shellcheck_finds_nothing_in_the_scripts,
]


def main():
    files = list(tree_files())
    failed = 0
    print(f"1..{len(RULES)}")
    for number, rule in enumerate(RULES, 1):
        if rule is shellcheck_finds_nothing_in_the_scripts and not shutil.which("shellcheck"):
            print(f"ok {number} - {rule.__name__} # SKIP shellcheck is not installed")
            continue
        broken = list(rule(files))
        for line in broken:
            print(f"# {line}")
        print(f"{'not ok' if broken else 'ok'} {number} - {rule.__name__}")
        failed += bool(broken)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
