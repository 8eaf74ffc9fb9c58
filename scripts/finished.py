"""Remembers for which commit each step of .ci/run last finished that a slow machine may have to leave out.

Usage: finished.py order STEP...     prints the steps, that which was left out for the longest time first
       finished.py since STEP        prints the commit for which the step last finished, if it is known here
       finished.py record STEP       the step has finished for HEAD
       finished.py overdue STEP...   fails if a step has not finished for more than LANDINGS landings

A landing is a day with commits behind the recorded one; a step that never finished is as old as the record. This, .ci/finished, is
part of the repository: who runs .ci/run commits it, and the next run reads it. It has the recorded commit's day as well, because a
commit may become unknown: its work may land as another commit.
"""

import pathlib
import subprocess
import sys

LANDINGS = 3
NEVER = 10**6  # landings
RECORD = pathlib.Path(".ci/finished")
HEADER = "# step, the commit for which it last finished, and that commit's day (scripts/finished.py)\n"


def git(*arguments):
    run = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return run.stdout if run.returncode == 0 else None


def day(commit):
    return git("log", "-1", "--format=%cd", "--date=format:%Y-%m-%d", commit).strip()


def read():
    """The commit and its day by step."""
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    rows = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return {step: (commit, when) for step, commit, when in rows}


def landings(recorded):
    """How many landings there were since what is recorded, a commit and its day, or else since the record began; NEVER if it has not."""
    if not recorded:
        added = (git("log", "--diff-filter=A", "--format=%H", "--", str(RECORD)) or "").split("\n")[0]
        if not added:
            return NEVER
        recorded = (added, day(added))
    commit, when = recorded
    dates = git("log", "--format=%cd", "--date=format:%Y-%m-%d", f"{commit}..HEAD")
    if dates is not None:
        return len(set(dates.split()))
    every = (git("log", "--format=%cd", "--date=format:%Y-%m-%d") or "").split()
    return len({date for date in every if date > when})


def main(action, *steps):
    finished = read()
    if action == "order":
        print("\n".join(sorted(steps, key=lambda step: -landings(finished.get(step)))))
    elif action == "since":
        commit, _ = finished.get(steps[0], (None, None))
        if commit and git("cat-file", "-e", f"{commit}^{{commit}}") is not None:
            print(commit)
    elif action == "record":
        commit = git("rev-parse", "HEAD").strip()
        finished[steps[0]] = (commit, day(commit))
        RECORD.write_text(HEADER + "".join(f"{step}\t{commit}\t{when}\n" for step, (commit, when) in sorted(finished.items())))
    elif action == "overdue":
        late = {step: landings(finished.get(step)) for step in steps}
        late = {step: count for step, count in late.items() if count > LANDINGS}
        for step, count in late.items():
            print(f"{step}: not finished for {'any commit' if count == NEVER else f'{count} landings'}, {LANDINGS} are allowed")
        return 1 if late else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
