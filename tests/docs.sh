# The commands in the READMEs, run; their output, compared. Sourced by run.sh.
