"""`python -m loganalyze`, for where the script is not on the path."""

from loganalyze.cli import main

main(prog_name="loganalyze")
