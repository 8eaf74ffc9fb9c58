"""Remembers for which commit each step of .ci/run last finished that a slow machine may have to leave out.

Usage: finished.py order STEP...     prints the steps, that which was left out for the longest time first
       finished.py since STEP        prints the commit for which the step last finished, if it is known here
       finished.py record STEP       the step has finished for HEAD
       finished.py overdue STEP...   fails if a step has not finished for more than LANDINGS landings

A landing is a day with commits behind the recorded one; a step that never finished is as old as the record. This, .ci/finished, is
part of the repository: who runs .ci/run commits it, and the next run reads it.
"""

import pathlib
import subprocess
import sys

LANDINGS = 3
RECORD = pathlib.Path(".ci/finished")
HEADER = "# step, and the commit for which it last finished (scripts/finished.py)\n"
NEVER = 10**6  # landings


def git(*arguments):
    run = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return run.stdout if run.returncode == 0 else None


def read():
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    return dict(line.split("\t") for line in lines if line and not line.startswith("#"))


def landings(commit):
    """How many landings there were since the commit, or else since the record began; NEVER if that is not known here."""
    commit = commit or (git("log", "--diff-filter=A", "--format=%H", "--", str(RECORD)) or "").split("\n")[0]
    dates = git("log", "--format=%cd", "--date=format:%Y-%m-%d", f"{commit}..HEAD") if commit else None
    return NEVER if dates is None else len(set(dates.split()))


def main(action, *steps):
    commits = read()
    if action == "order":
        print("\n".join(sorted(steps, key=lambda step: -landings(commits.get(step)))))
    elif action == "since":
        commit = commits.get(steps[0])
        if commit and git("cat-file", "-e", f"{commit}^{{commit}}") is not None:
            print(commit)
    elif action == "record":
        commits[steps[0]] = git("rev-parse", "HEAD").strip()
        RECORD.write_text(HEADER + "".join(f"{step}\t{commit}\n" for step, commit in sorted(commits.items())))
    elif action == "overdue":
        late = {step: landings(commits.get(step)) for step in steps}
        late = {step: count for step, count in late.items() if count > LANDINGS}
        for step, count in late.items():
            print(f"{step}: not finished for {'any commit known here' if count == NEVER else f'{count} landings'}, {LANDINGS} are allowed")
        return 1 if late else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
