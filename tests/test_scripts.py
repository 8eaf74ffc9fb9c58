"""The scripts that check the tree, and the files of editors beside them: which files are compiled as one (scripts/batches.py), what tests took
(scripts/total.py) and how many there are in each layer (scripts/layers.py), which steps a slow machine left out for how long
(scripts/finished.py), what counts as a change of code (scripts/code_changed.py), where Python environments lie (scripts/common.sh)."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parent.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

import batches  # noqa: E402
import code_changed  # noqa: E402
import layers  # noqa: E402
import tidy  # noqa: E402

pytestmark = pytest.mark.deploy


def together(folder, *sources):
    """Whether these two sources may be compiled as one."""
    paths = []
    for number, source in enumerate(sources):
        path = folder / f"{number}.cc"
        path.write_text(source)
        paths.append(str(path))
    return len(batches.batches(paths, 8)) == 1


UNNAMED = "namespace millrace {\nnamespace {\n%s\n}  // namespace\n%s\n}  // namespace millrace\n"


@pytest.mark.parametrize("mine", [
    "int Parse(int x) { return x; }", "struct Parse { int x; };", "enum class Parse { kOne };",
    "constexpr int Parse = 1;", "template <typename T>\nstd::vector<T> Parse(T x) {\n  return {x};\n}", "const char* const Parse[] = {};",
])
def test_a_name_that_a_file_keeps_to_itself_stands_in_one_file_of_a_batch(tmp_path, mine):
    first = UNNAMED % (mine, "")
    assert not together(tmp_path, first, UNNAMED % (mine, ""))
    assert not together(tmp_path, first, UNNAMED % ("", "int Use() { return Parse(1); }"))
    assert together(tmp_path, first, UNNAMED % ("", "int Use() { return other::Parse(1) + a.Parse(2) + b->Parse(3); }  // Parse"))
    assert together(tmp_path, first, UNNAMED % ("", 'const std::string& Use() { return "Parse"; }'))


def test_names_of_internal_linkage_count_wherever_they_stand(tmp_path):
    for source in ("static int Parse() { return 1; }", "constexpr int Parse = 1;", "#define Parse 1"):
        assert not together(tmp_path, source, "int Use() { return Parse; }"), source
    assert together(tmp_path, "int Reader::Parse() { return 1; }", "int Use(Reader r) { return r.Parse(); }")
    assert together(tmp_path, "int Other() { const int Parse = 1; return Parse; }", "int Use() { return Parse(); }")


def test_declarations_that_may_be_repeated_keep_nothing_apart(tmp_path):
    source = "using ::testing::HasSubstr;\nnamespace millrace {\nTEST(Suite, %s) { EXPECT_THAT(x, HasSubstr(y)); }\n}\n"
    assert together(tmp_path, source % "One", source % "Two")


@pytest.mark.parametrize("alias", ["using Parse = %s::Parser;", "namespace Parse = %s::parsers;"])
def test_an_alias_of_the_same_thing_may_stand_in_both(tmp_path, alias):
    first = UNNAMED % (alias % "one", "int x;")
    assert together(tmp_path, first, first)
    assert not together(tmp_path, first, UNNAMED % (alias % "other", "int x;"))
    assert not together(tmp_path, first, UNNAMED % ("", "Parse x;"))


def test_a_name_that_only_the_other_files_headers_declare_keeps_them_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "ROOT", tmp_path)
    (tmp_path / "all.h").write_text('#include "traits.h"\n')
    (tmp_path / "traits.h").write_text("namespace millrace {\nconst Type& Traits(int type);\n}\n")
    mine = UNNAMED % ("struct Traits { int x; };", "")
    assert not together(tmp_path, mine, '#include "all.h"\nint x;')
    assert together(tmp_path, mine, "int x;")


def test_a_batch_has_a_size(tmp_path):
    paths = []
    for number in range(5):
        paths.append(str(tmp_path / f"{number}.cc"))
        pathlib.Path(paths[-1]).write_text("int x;")
    assert batches.batches(paths, 2) == [paths[:2], paths[2:4], paths[4:]]


def test_a_file_with_a_using_declaration_that_nothing_in_it_uses_is_judged_alone(tmp_path):
    path = tmp_path / "a.cc"
    path.write_text("using ::testing::HasSubstr;  // HasSubstr\nint x;\n")
    assert tidy.unused_using(path)
    path.write_text("using ::testing::HasSubstr;\nauto x = HasSubstr(1);\n")
    assert not tidy.unused_using(path)


def test_a_header_that_moves_to_the_other_side_of_a_condition_is_a_change_of_code():
    source = '#ifndef A_B_H_\n#define A_B_H_\n\n%s#include "base/status.h"\n%s\n#if defined(__AVX512F__)\n%sint Wide();\n#endif\n\n#endif\n'
    of_old, of_new = '#include "old/tiles.h"\n', '#include "new/tiles.h"\n'
    before = code_changed.without_places(source % (of_old, "", ""))
    assert code_changed.without_places((source % ("", of_new, "")).replace("A_B_H_", "C_B_H_")) == before
    assert code_changed.without_places(source % ("", "", of_new)) != before


def test_a_list_of_what_a_distribution_lacks_has_an_environment_of_its_own(tmp_path):
    shutil.copytree(SCRIPTS / "pypi", tmp_path / "scripts" / "pypi", ignore=shutil.ignore_patterns("*.without-*"))
    shutil.copy(SCRIPTS / "common.sh", tmp_path / "scripts")

    def environment(distribution):
        return subprocess.run(["bash", "-c", f"source scripts/common.sh && DISTRIBUTION={distribution} && venv_path test"], cwd=tmp_path,
                              capture_output=True, text=True, check=True).stdout

    whole = environment("debian-12")
    lacking = tmp_path / "scripts" / "pypi" / "test.without-debian-12"
    lacking.write_text("pillow\n")
    one = environment("debian-12")
    lacking.write_text("pillow\nhttpx\n")
    assert len({whole, one, environment("debian-12")}) == 3 and environment("ubuntu-24.04") == whole


def test_the_total_ends_with_what_was_slowest_and_the_counts(tmp_path):
    cases = tmp_path / "cases"
    cases.mkdir()
    (tmp_path / "ctest.xml").write_text(
        '<testsuite><testcase name="a_test" status="run" time="3.5"/><testcase name="crash_test" status="fail" time="9"/></testsuite>')
    (cases / "a_test.xml").write_text(
        "<testsuites>" + "".join(f'<testcase name="Case{i}" classname="Suite" status="run" time="{i}"/>' for i in range(12)) + "</testsuites>")
    (tmp_path / "pytest.xml").write_text('<testsuites><testcase classname="tests.test_b" name="test_c" time="7.25"/></testsuites>')
    run = subprocess.run([sys.executable, SCRIPTS / "total.py", tmp_path], stdout=subprocess.PIPE, text=True)
    lines = run.stdout.splitlines()
    assert run.returncode == 1
    assert lines[:4] == ["slowest programs:", "      9.0 s  crash_test", "      7.2 s  test_b", "      3.5 s  a_test"]
    assert lines[4:6] == ["slowest cases:", "     11.0 s  a_test Suite.Case11"]
    assert "      7.2 s  test_b test_c" in lines
    assert len(lines) == 16 and lines[-1] == "13 passed, 1 failed"


def test_layers_counts_cases_where_they_are_declared_and_where_they_ran(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("base/CMakeLists.txt", "millrace_test(NAME a_test SRCS a_test.cc  # millrace_test(NAME no_test SRCS a_test.cc)\n  DEPS a)\n"
          "millrace_test(NAME life_test SRCS life_test.cc LABELS server)\nmillrace_test(NAME g_test SRCS g_test.cu GPU)\n"
          "millrace_fuzz(NAME a_fuzz SRCS a_fuzz.cc)\nmillrace_bench(NAME a_bench SRCS a_bench.cc)\n")
    write("base/a_test.cc", "TEST(A, One) {\n}\nTEST_F(B, Two) {\n}\n  TEST(C, Commented)\n")
    write("base/life_test.cc", "TEST(Life, One) {\n}\n")
    write("base/g_test.cu", "TEST_P(G, One) {\n}\n")
    write("engine/a.cc", 'FaultPoint a("a.error");\n')
    write("engine/a_test.cc", 'FaultPoint b("b.error");\n')
    write("tests/test_life.py", "def test_a():\n    pass\n\n\ndef helper():\n    pass\n")
    write("tests/test_image.py", "pytestmark = pytest.mark.deploy\n\n\ndef test_b():\n    pass\n")
    write("tests/gpu/test_gpu.py", "def test_c():\n    pass\n")
    write("tests/reference/a_reference.json", "{}")
    write("tests/soak/device_faults.py", "FAULTS = [1, 2]\nif gpu():\n    FAULTS += [3]\nelse:\n    FAULTS += [4, 5]\n")
    write("tests/soak/machine_faults.py", "FAULTS = [killed]\n")
    write("tests/soak/attacks.py", "ATTACKS = {attack.__name__: attack for attack in (one, two)}\n")
    counts = {layer: (count, ran) for layer, _, count, ran in layers.layers(tmp_path)}
    assert counts == {
        "unit tests": (2, None), "tests with a model or the daemon, in C++": (1, None), "black-box tests": (1, None),
        "tests of documents, images and charts": (1, None), "reference data": (1, None), "fuzz targets": (1, None), "fault points": (1, None),
        "soak and faults": (5, None), "attacks": (2, None), "GPU tests": (1, None), "GPU tests beside transformers": (1, None),
        "benchmarks": (1, None)}

    write("reports/cases/a_test.xml", '<testsuites><testcase name="One" classname="A" status="run"/><testcase name="Two/0" classname="B" status="run"/>'
          '<testcase name="Two/1" classname="B" status="notrun"/><testcase name="Three" classname="B"><failure/></testcase></testsuites>')
    write("reports/cases/life_test.xml", '<testsuites><testcase name="One" classname="Life" status="run"/></testsuites>')
    write("reports/pytest.xml", '<testsuites><testcase classname="tests.test_life" name="test_a[1]"/><testcase classname="tests.test_life" name="test_a[2]"/>'
          '<testcase classname="tests.test_image" name="test_b"><skipped/></testcase></testsuites>')
    ran = {layer: ran for layer, _, _, ran in layers.layers(tmp_path, tmp_path / "reports") if ran is not None}
    assert ran == {"unit tests": 2, "tests with a model or the daemon, in C++": 1, "black-box tests": 2, "tests of documents, images and charts": 0}


def test_clang_tidy_reads_each_file_of_a_batch_without_what_is_precompiled(tmp_path):
    batch = tmp_path / "Unity" / "unity_base_0_cxx.cxx"
    batch.parent.mkdir()
    batch.write_text('/* generated by CMake */\n\n#include "/src/a.cc"\n\n#include "/src/b.cc"\n')
    alone = {"directory": "/build", "command": "ccache c++ -O2 -o c.o -c /src/c.cc", "file": "/src/c.cc"}
    command = f"c++ -O2 -Winvalid-pch -include /build/pch.hxx -o u.o -c {batch}"
    entries = list(tidy.file_by_file([alone, {"directory": "/build", "command": command, "file": str(batch)}]))
    assert [(entry["file"], entry["command"]) for entry in entries] == [
        ("/src/c.cc", "ccache c++ -O2 -o c.o -c /src/c.cc"), ("/src/a.cc", "c++ -O2 -o u.o -c /src/a.cc"),
        ("/src/b.cc", "c++ -O2 -o u.o -c /src/b.cc")]


def test_clang_tidy_judges_the_sources_of_every_folder_that_a_batch_includes():
    for path in SCRIPTS.parent.glob("[a-z]*/**/*.cc"):
        name = path.relative_to(SCRIPTS.parent)
        if not name.parts[0].startswith("build"):
            assert re.search(tidy.SOURCES, str(path)), name
    assert not re.search(tidy.SOURCES, str(SCRIPTS.parent / "base" / "status.h"))


class Landings:
    """A repository with a commit on each of several days, and finished.py run in it."""

    def __init__(self, folder):
        self.folder = folder
        (folder / ".ci").mkdir()
        self("git", "init", "--quiet")

    def __call__(self, *command, **environment):
        return subprocess.run(command, cwd=self.folder, env={**os.environ, **environment}, check=False, capture_output=True, text=True)

    def commit(self, day):
        date = f"2026-05-{day:02}T12:00:00+0000"
        self("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "x", GIT_AUTHOR_DATE=date,
             GIT_COMMITTER_DATE=date)
        return self("git", "rev-parse", "HEAD").stdout.strip()

    def finished(self, *arguments):
        return self(sys.executable, str(SCRIPTS / "finished.py"), *arguments)


def test_a_step_is_overdue_after_three_landings_without_it(tmp_path):
    repository = Landings(tmp_path)
    first = repository.commit(1)
    assert repository.finished("overdue", "a").returncode == 1  # never finished
    repository.finished("record", "a")
    assert repository.finished("since", "a").stdout.strip() == first
    for day in (2, 2, 2, 3, 4):  # commits of one day are one landing
        repository.commit(day)
    repository.finished("record", "b")
    assert repository.finished("overdue", "a", "b").returncode == 0
    assert repository.finished("order", "b", "a").stdout.split() == ["a", "b"]
    repository.commit(5)
    late = repository.finished("overdue", "a", "b")
    assert late.returncode == 1 and late.stdout.startswith("a: not finished for 4 landings")
    repository.finished("record", "a")
    assert repository.finished("overdue", "a", "b").returncode == 0


def test_a_step_that_never_finished_is_as_old_as_the_record(tmp_path):
    repository = Landings(tmp_path)
    repository.commit(1)
    repository.finished("record", "b")
    repository("git", "add", ".ci/finished")
    for day in (2, 3, 4, 5):
        repository.commit(day)
    assert repository.finished("overdue", "a").returncode == 0
    repository.commit(6)
    assert repository.finished("overdue", "a").stdout.startswith("a: not finished for 4 landings")


def test_a_commit_that_is_not_in_this_clone_counts_by_its_day(tmp_path):
    repository = Landings(tmp_path)
    repository.commit(1)
    (tmp_path / ".ci" / "finished").write_text("a\t" + "0" * 40 + "\t2026-05-01\n")
    assert repository.finished("since", "a").stdout == ""
    for day in (2, 3, 3, 4):
        repository.commit(day)
    assert repository.finished("overdue", "a").returncode == 0
    assert repository.finished("order", "b", "a").stdout.split() == ["b", "a"]
    repository.commit(5)
    assert repository.finished("overdue", "a").stdout.startswith("a: not finished for 4 landings")


ROOT = SCRIPTS.parent
PRESETS = json.loads((ROOT / "CMakePresets.json").read_text())


@pytest.mark.parametrize("preset", [one for one in PRESETS["configurePresets"] if not one.get("hidden")], ids=lambda preset: preset["name"])
def test_a_preset_configures_a_folder_of_the_scripts_as_they_do(preset):
    scripts = "\n".join(path.read_text() for path in [*SCRIPTS.glob("*.sh"), ROOT / ".ci" / "run"])
    folder = preset["binaryDir"].removeprefix("${sourceDir}/")
    assert re.search(rf"\b{folder}\b", scripts), folder
    for name, value in preset["cacheVariables"].items():
        assert f"-D{name}={value}" in scripts, f"no script configures {folder}/ with -D{name}={value}"
    ignored = subprocess.run(["git", "check-ignore", "-q", folder + "/"], cwd=ROOT, check=False)
    assert ignored.returncode == 0, f"{folder}/ is not ignored"
    assert folder in re.search(r"^clean:.*\n\t@rm -rf (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()


def test_the_dev_container_is_set_up_by_the_projects_script_for_groups_that_exist():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    script, *groups = container["onCreateCommand"].split()
    known = {line.split("\t")[0] for line in (SCRIPTS / "packages.tsv").read_text().splitlines() if not line.startswith("#")}
    assert (ROOT / script).samefile(SCRIPTS / "setup.sh") and groups and set(groups) <= known
    preset = re.search(r"cmake --preset (\S+)", container["postCreateCommand"])[1]
    assert preset in [one["name"] for one in PRESETS["configurePresets"]]
