"""Runs clang-tidy over source files, several in one translation unit where they can be (scripts/batches.py says why).

Usage: tidy.py BUILD JOBS [--alone] FILES...   BUILD holds compile_commands.json; FILES are relative to the current folder.
       tidy.py BUILD                           only writes BUILD/tidy/compile_commands.json, with a command for each file of a batch

With --alone each file is instead compiled by itself, which shows whether it includes what it uses: in the build others of its batch and
precompiled headers may do so for it.

A batch that does not compile or that has a finding is judged again file by file, and only that second judgement counts. So a finding
always names the file as it is compiled in the build. Files with a `using` declaration that they do not use are judged alone, because
another file of the batch might use it.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import batches

SIZE = 12
# Sources alone: a batch includes them. Headers are not judged; some findings in them cannot be mended, as that of
# bugprone-macro-parentheses in base/status.h, where the argument is a declaration.
_FOLDERS = {path.relative_to(batches.ROOT).parts[0] for path in batches.ROOT.glob("[a-z]*/**/*.cc")}
SOURCES = f"/({'|'.join(sorted(name for name in _FOLDERS if not name.startswith('build')))})/[a-z0-9_/]*[.]cc$"
_FOUND = re.compile(r"(?:warning|error): ")


def flags(command):
    """A compile command's flags: those that files of one batch must have alike, and where its headers lie and its macros."""
    words = shlex.split(command)[1:]
    at = words.index("-o")
    words = words[:at] + words[at + 2:-2]
    alike, own = [], []
    while words:
        word = words.pop(0)
        if word == "-isystem":
            own.append(f"{word}{words.pop(0)}")
        else:
            (own if word.startswith(("-I", "-D")) else alike).append(word)
    return tuple(alike), own


def file_by_file(entries):
    """The entries of compile_commands.json as if no file were compiled with others or after precompiled headers."""
    for entry in entries:
        entry["command"] = _without_precompiled_headers(entry["command"])
        batch = pathlib.Path(entry["file"])
        if batch.parent.name != "Unity":
            yield entry
        elif batch.exists():
            for file in re.findall(r'^#include "(.*)"$', batch.read_text(), re.M):
                yield {**entry, "file": file, "command": entry["command"].replace(str(batch), file)}


def _without_precompiled_headers(command):
    words = shlex.split(command)
    while "-include" in words:
        at = words.index("-include")
        del words[at:at + 2]
    return shlex.join(word for word in words if word != "-Winvalid-pch")


def unused_using(path):
    text = batches.without_comments(pathlib.Path(path).read_text())
    names = re.findall(r"^using\s+(?:\w*\s*::\s*)+(\w+);", text, re.M)
    return any(len(re.findall(rf"\b{name}\b", text)) == 1 for name in names)


def plan(commands, files):
    """The files in batches, those that may share a translation unit together, the largest batch first.

    LibTorch's files stay apart: its folder of headers has another version of other libraries' headers.
    """
    alike, jobs = collections.defaultdict(list), []
    for file in files:
        command = commands[os.path.abspath(file)]["command"]
        if unused_using(file):
            jobs.append([file])
        else:
            alike["/torch/" in file, flags(command)[0]].append(file)
    for group in alike.values():
        jobs += batches.batches(group, SIZE)
    return sorted(jobs, key=len, reverse=True)


def tidy(folder, source):
    run = subprocess.run(["clang-tidy", "-p", folder, "--quiet", "--warnings-as-errors=*", f"--header-filter={SOURCES}", source],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = "\n".join(line for line in run.stdout.splitlines() if not re.match(r"\d+ warnings? (and \d+ errors? )?generated", line))
    return run.returncode == 0 and not _FOUND.search(output), output


def judge(build, commands, number, files):
    """Whether all is well with these files, and what clang-tidy says otherwise."""
    if len(files) > 1:
        folder = build / "tidy" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        batch = folder / "batch.cc"
        batch.write_text("".join(f'#include "{os.path.abspath(file)}"  // NOLINT(bugprone-suspicious-include)\n' for file in files))
        first = commands[os.path.abspath(files[0])]
        own = dict.fromkeys(word for file in files for word in flags(commands[os.path.abspath(file)]["command"])[1])
        command = shlex.join(["c++", *flags(first["command"])[0], *own, "-o", "batch.o", "-c", str(batch)])
        entry = {"directory": first["directory"], "file": str(batch), "command": command}
        (folder / "compile_commands.json").write_text(json.dumps([entry]))
        good, _ = tidy(folder, batch)
        if good:
            return True, ""
    results = [tidy(build / "tidy", file) for file in files]
    return all(good for good, _ in results), "\n".join(output for good, output in results if not good)


def compile_alone(entry):
    """Whether a file compiles by itself, and what the compiler says."""
    words = shlex.split(entry["command"])
    words = words[next(at for at, word in enumerate(words) if re.search(r"(c|g|clang)\+\+(-\d+)?$", word)):]
    run = subprocess.run([*words, "-fsyntax-only"], cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run.returncode == 0, run.stdout


def main(build, jobs=1, *files):
    build = pathlib.Path(build).resolve()
    entries = list(file_by_file(json.loads((build / "compile_commands.json").read_text())))
    (build / "tidy").mkdir(exist_ok=True)
    (build / "tidy" / "compile_commands.json").write_text(json.dumps(entries, indent=0))
    if not files:
        return 0
    commands = {entry["file"]: entry for entry in entries}
    if files[0] == "--alone":
        files = files[1:]
        print(f"compiling {len(files)} files by themselves", file=sys.stderr)
        work, check = [commands[os.path.abspath(file)] for file in files], compile_alone
    else:
        planned = plan(commands, files)
        print(f"clang-tidy: {len(files)} files in {len(planned)} translation units", file=sys.stderr)
        work, check = enumerate(planned), lambda job: judge(build, commands, *job)
    good = True
    with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
        for well, output in pool.map(check, work):
            good &= well
            if output:
                print(output, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
