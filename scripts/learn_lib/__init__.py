"""Modules of ./scripts/learn.

main.py       the commands
exercises.py  reads steps/*/exercises/*.toml and makes a student's file, or a solution, from a step
check.py      compiles such a file and runs it under limits
judging.py    says what is wrong, from outside
desk.py       the student's folder learn/: copies, state, backups
show.py       the terminal output
watch.py      the bare ./scripts/learn: re-checks on save, keys
grade.py      a folder of submissions
"""
