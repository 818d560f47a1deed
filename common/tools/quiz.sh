#!/bin/bash
# make quiz: runs tiny-hybrid with one hidden bug and asks for its name. The clues are what the run prints, and its trace.
#
# SEED chooses the bug; without it the time does. MPIRUN and MESH come from the Makefile.
set -u
program=build/fp64-bugs/tiny-hybrid
seed=${SEED:-$(date +%s)}
flags="$MESH --model nano-moe --device cpu --steps 3 --accumulate 2 --ignore 0.5 --clip 0.1"
command="$MPIRUN -q -n 8 $program $flags --verify --ledger --trace build/quiz.json --bug random:$seed"
name=$($program --bug "reveal:$seed") || { echo "SEED=$seed: must be a whole number" >&2; exit 2; }
printf '$ %s\n' "$command"
$command < /dev/null
cat <<END

One of the bugs of this build is switched on. Which parts of the numbers are wrong, and from which step on? The trace is in
build/quiz.json, for Perfetto. A run without --bug, or with other flags, shows what should be there.
END
while printf 'bug (a name; list: all bugs; Enter: tell me)? ' && read -r answer; do
    case $answer in
    "$name") echo "Yes." && exit 0 ;;
    list) $program --bug list ;;
    "") break ;;
    *) echo "No, not $answer." ;;
    esac
done
echo
echo "It was $name:"
$program --bug list | grep -A 2 "^$name "
