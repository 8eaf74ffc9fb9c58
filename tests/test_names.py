"""No two files define a class of the same name: a linker takes the destructor, or another inline function, of either for both."""
import collections
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import batches  # noqa: E402

pytestmark = pytest.mark.deploy

# A directive; the beginning of a namespace; of a class with its body; any other brace. `class A::B {` defines what A declares.
TOKEN = re.compile(
    r"^[ \t]*\#(?:\\\n|[^\n])*"
    r"|\bnamespace\b(?P<namespace>[^;{=]*)\{"
    r"|\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+(?:(?:alignas|__align__)\([^)]*\)\s*)?(?P<type>\w+)(?:\s+final)?\s*(?::(?!:)[^;{()]*)?\{"
    r"|[{}]", re.M)


def types(text):
    """The names of the classes and enumerations that a file defines for all, with their namespaces."""
    around = []  # of each open brace: the namespace's name, or None of anything else
    for token in TOKEN.finditer(batches.HIDDEN.sub(" ", text)):
        if token[0] == "}":
            if around:
                around.pop()
        elif token["namespace"] is not None:
            around.append(token["namespace"].strip() or None)
        elif token[0].endswith("{"):
            if token["type"] and all(around):
                yield "::".join([*around, token["type"]])
            around.append(None)


def test_the_names_are_found():
    text = """
        // struct Said {};
        namespace a::b {
        class Forward;
        struct Base { struct Inner {}; };
        class Derived final : public Base {};
        enum class Color { kRed };
        struct Base::Nested {};
        namespace { struct Own {}; }
        }  // namespace a::b
        struct Global {};"""
    assert list(types(text)) == ["a::b::Base", "a::b::Derived", "a::b::Color", "Global"]


def test_a_class_has_one_definition():
    listed = subprocess.run(["git", "ls-files", "*.h", "*.cc", "*.cuh", "*.cu"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = collections.defaultdict(set)
    for file in listed.stdout.split():
        for name in types((ROOT / file).read_text()):
            files[name].add(file)
    assert len(files) > 1000
    assert {name: sorted(where) for name, where in files.items() if len(where) > 1} == {}
