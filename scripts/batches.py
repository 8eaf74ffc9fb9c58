"""Sorts source files into batches that compile as one: `#include` of each, one after the other, in one translation unit.

Most of the time that a file takes goes into its headers, for the compiler and even more for clang-tidy; a batch pays it once. The
builds (cmake/Targets.cmake) and clang-tidy (scripts/tidy.py) work on batches.

Usage: batches.py SIZE LIST   prints "TARGET_NUMBER SOURCE" lines, a number for each batch of a target

LIST is a file of "TARGET SOURCE" lines; files of different targets share no batch.

Two files share a batch only if neither mentions a name, nor includes a header of ours that declares one, that the other keeps to
itself: what it declares in an unnamed namespace or static, constexpr, const, as an alias or as a macro. Both may have the same alias of
the same thing. The names are found by a scan of namespace scopes, not by a compiler.
"""

import collections
import dataclasses
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Text that may look like code: comments, raw strings, strings and characters (but not the ' of 1'000).
HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z])\'(?:\\.|[^\'\\\n])+\'', re.S)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include "([^"]+)"', re.M)
_DEFINE = re.compile(r"#\s*define\s+(\w+)")
_TEMPLATE = re.compile(r"^\s*template\s*<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>")
_TYPE = re.compile(r"^(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(?:alignas\([^)]*\)\s*)?(\w+)")
_ALIAS = re.compile(r"(?:using|namespace)\s+(\w+)\s*=\s*([^;]+)")
# A name that is neither a member's nor qualified.
_WORD = re.compile(r"(?<![\w.:>])(?<!->)([A-Za-z_]\w*)|(?<=[^-]>)([A-Za-z_]\w*)|(?<=[^:]:)([A-Za-z_]\w*)|(?<=[.]{3})([A-Za-z_]\w*)")


def _declared(statement):
    """The name that a statement at namespace scope declares for its file, and whether only internally; or None."""
    statement = _TEMPLATE.sub("", statement).strip()
    if statement.startswith(("using ", "namespace ")):  # `using a::b;` and `using namespace a;` may stand in both files.
        alias = _ALIAS.match(statement)
        return (alias.group(1), True) if alias else None
    if found := _TYPE.match(statement):
        return found.group(1), False
    internal = re.match(r"(?:inline\s+)?(?:static|constexpr|const|thread_local)\b", statement) is not None
    head = re.split(r"[({=\[]", statement, maxsplit=1)[0]
    name = re.search(r"(?<!:)\b([A-Za-z_]\w*)\s*$", head)
    if not name or head.strip() == name.group(1) or name.group(1).startswith("operator"):
        return None  # A macro's call, such as TEST(...).
    return name.group(1), internal


def without_comments(text):
    """C++ source with its comments gone and its strings empty."""
    return HIDDEN.sub(lambda found: '""' if found.group()[0] in "\"'R" else " ", text)


@dataclasses.dataclass
class Names:
    """The names of a C++ file: kept to itself, declared at namespace scope, mentioned; what it includes between quotes; and what its
    aliases stand for."""
    kept: set
    declared: set
    mentioned: set
    includes: list
    aliases: dict


def scan(text):
    includes = _INCLUDE.findall(text)
    text = without_comments(text)
    names = Names(set(_DEFINE.findall(text)), set(), set(), includes, {})
    text = _DIRECTIVE.sub("", text)
    names.mentioned = {name for found in _WORD.finditer(text) for name in found.groups() if name}
    scopes = []  # of each open brace: "named" or "unnamed" namespace, or "code"
    statement = ""
    for token in re.findall(r"[{};]|[^{};]+", text):
        at_namespace = "code" not in scopes
        if token not in "{};":
            statement += token if at_namespace else ""
            continue
        if at_namespace and token != "}":
            opened = re.search(r"(?:^|\s)namespace\s*([\w:]*)\s*$", statement) if token == "{" else None
            if opened:
                scopes.append("named" if opened.group(1) else "unnamed")
                statement = ""
                continue
            if statement and (declared := _declared(statement)):
                names.declared.add(declared[0])
                if declared[1] or "unnamed" in scopes:
                    names.kept.add(declared[0])
                if alias := _ALIAS.match(statement.strip()):
                    names.aliases[declared[0]] = alias.group(2).strip()
        if token == "{":
            scopes.append("code")
        elif token == "}" and scopes:
            scopes.pop()
        statement = ""
    return names


@functools.cache
def _scan_header(name):
    path = ROOT / name
    return scan(path.read_text()) if path.is_file() else None  # Else protoc made it.


def declared_in_headers(includes):
    """What our headers declare that these include, and those that they include in turn."""
    seen, waiting, declared = set(), list(includes), set()
    while waiting:
        name = waiting.pop()
        if name not in seen and (names := _scan_header(name)):
            declared |= names.declared
            waiting += names.includes
        seen.add(name)
    return declared


def _collide(one, other):
    (names, headers), (others, other_headers) = one, other
    shared = {name for name, target in names.aliases.items() if others.aliases.get(name) == target}
    return names.kept & (others.mentioned | others.kept | (other_headers - headers)) - shared


def batches(paths, size):
    """Lists of at most `size` of `paths`, filled first come, first served."""
    made = []  # [(path, (names, declared in headers))] each
    for path in paths:
        names = scan(pathlib.Path(path).read_text())
        file = names, declared_in_headers(names.includes)
        for batch in made:
            if len(batch) < size and not any(_collide(file, other) or _collide(other, file) for _, other in batch):
                batch.append((path, file))
                break
        else:
            made.append([(path, file)])
    return [[path for path, _ in batch] for batch in made]


if __name__ == "__main__":
    targets = collections.defaultdict(list)
    for line in pathlib.Path(sys.argv[2]).read_text().splitlines():
        name, source = line.split(" ", 1)
        targets[name].append(source)
    for name, sources in targets.items():
        for number, batch in enumerate(batches(sources, int(sys.argv[1]))):
            for source in batch:
                print(f"{name}_{number} {source}")
