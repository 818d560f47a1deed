#!/bin/bash
# make compare: every strategy on the same model and data, a row each: bytes that a rank holds and sends in a step, as
# measured (the ledger has found them equal to the formulas). And a picture of the same, if gnuplot is there.
#   PROGRAM, MPIRUN, NP (4), PICTURE (build/compare.svg); further arguments go to the program
set -eu
cd "$(dirname "$0")/.."
. tests/lib.sh
NP=${NP:-4} PICTURE=${PICTURE:-build/compare.svg} steps=4
rows=$work/rows

# held NAME: what the ledger says is held, bytes
held() {
    awk -v name="ledger: $1" 'index($0, name) == 1 {print $3}' "$work/out"
}

strategies="ddp zero1 zero2 zero3 fsdp hsdp"
[ $((NP % 2)) = 0 ] || strategies="ddp zero1 zero2 zero3 fsdp"
for strategy in $strategies; do
    if ! timeout -k 5 300 $MPIRUN -q -n "$NP" "$PROGRAM" --strategy "$strategy" --steps $steps --ledger "$@" > "$work/out" 2> "$work/err" ||
        grep -q DIFFERS "$work/out"; then
        echo "compare: $strategy failed:" >&2
        cat "$work/err" "$work/out" >&2
        exit 1
    fi
    sent=$(awk -v steps=$steps '/^ledger: (gather|reduce|dp|model) / {bytes += $6} END {printf "%.0f", bytes / steps}' "$work/out")
    calls=$(awk -v steps=$steps '/^ledger: (gather|reduce|dp|model) / {calls += $4} END {printf "%.0f", calls / steps}' "$work/out")
    echo "$strategy $(held parameters) $(held gradients) $(held optimizer) $(held buffers) $(held activations) $sent $calls" >> "$rows"
done

grep '^model' "$work/out"
echo "$NP ranks; MiB held by each rank, and sent by it in a step (in collectives); all as the formulas say"
echo
awk '
    BEGIN {
        printf "%-8s %10s %10s %10s %10s %10s %12s %10s %6s\n", "strategy", "parameters", "gradients", "optimizer",
               "buffers", "together", "activations", "sent", "calls"
    }
    {
        m = 1048576
        printf "%-8s %10.3f %10.3f %10.3f %10.3f %10.3f %12.3f %10.3f %6d\n", $1, $2 / m, $3 / m, $4 / m, $5 / m,
               ($2 + $3 + $4 + $5) / m, $6 / m, $7 / m, $8
    }' "$rows"

command -v gnuplot > /dev/null || { echo "no picture: gnuplot is not installed (Debian: gnuplot-nox)"; exit 0; }
mkdir -p "$(dirname "$PICTURE")"
gnuplot << GNUPLOT
set terminal svg size 900,360 font "sans-serif,12" background "white"
set output "$PICTURE"
set multiplot layout 1,2
set style data histograms
set style histogram rowstacked
set style fill solid 0.9 border lc rgb "white"
set boxwidth 0.7
set yrange [0:*]
set key outside top center horizontal
set title "held by each rank, MiB"
plot "$rows" using (\$2 / 1048576):xtic(1) lc rgb "#4c78a8" title "parameters", \
     "" using (\$3 / 1048576) lc rgb "#f58518" title "gradients", \
     "" using (\$4 / 1048576) lc rgb "#54a24b" title "optimizer", \
     "" using (\$5 / 1048576) lc rgb "#b279a2" title "buffers"
set title "sent by each rank in a step, MiB"
plot "$rows" using (\$7 / 1048576):xtic(1) lc rgb "#e45756" title "payload"
GNUPLOT
echo
echo "picture: $PICTURE"
