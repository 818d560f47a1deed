#!/bin/bash
# make drift: what rounding does. Trains one model on a single device in fp64; then in fp32, and where there is a GPU in
# bf16, on a single device and on five meshes of eight ranks. Rows go to the same experts in all runs. Prints how far each run
# is from the fp64 run:
#
#   loss       the mean over the steps of |loss - loss in fp64| / loss in fp64
#   gradient   of the first step: |g - g in fp64| / |g in fp64|, over all parameters
#   weights    the same, after the last step
#   ratio      to the single device in the same precision, of loss and gradient: 1 says that the mesh rounds no worse
#   choices    of experts that would have been others
#
# MODEL (nano-moe) and STEPS (200) choose the run; flags go to all runs.
set -u
cd "$(dirname "$0")/../.."
MPIRUN=${MPIRUN:-mpirun} MODEL=${MODEL:-nano-moe} STEPS=${STEPS:-200}
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# train PRECISION RANKS NAME FLAGS...: leaves $work/NAME.losses and $work/NAME.dump; of the second run on, $work/NAME.flips
train() {
    local precision=$1 ranks=$2 name=$3
    shift 3
    timeout -k 5 300 $MPIRUN -q -n "$ranks" "build/$precision/tiny-hybrid" --model "$MODEL" --steps "$STEPS" --dump "$work/$name.dump" \
        --log "$work/log" "$@" > "$work/out" 2>&1 < /dev/null || { echo "failed: $precision, $ranks ranks, $*" && tail -5 "$work/out" && exit 1; }
    sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$work/log" > "$work/$name.losses"
    sed -n 's/^routes: \([0-9]*\) of \([0-9]*\) .*/\1 of \2/p' "$work/out" > "$work/$name.flips"
}

# distances NAME: "loss gradient weights"
distances() {
    paste "$work/$1.losses" "$work/fp64.losses" |
        awk '{ d = $1 - $2; sum += (d < 0 ? -d : d) / $2 } END { printf "%.3e ", sum / NR }'
    build/fp64/dump_distance "$MODEL" "$work/$1.dump" "$work/fp64.dump"
}

row() { # precision, mesh, name, the single device's distances
    local here
    here=$(distances "$3") || exit 1
    echo "$here $4" | awk -v precision="$1" -v mesh="$2" -v flips="$(cat "$work/$3.flips")" '
        function ratio(a, b) { return b > 0 ? sprintf("%.2f", a / b) : "-" }
        { printf "%-4s  %-34s  %9s  %9s  %9s  %5s  %5s  %s\n", precision, mesh, $1, $2, $3, ratio($1, $4), ratio($2, $5), flips }'
}

train fp64 1 fp64 --save-routes "$work/routes" "$@"
echo "$MODEL, $STEPS steps: distance from a single device in fp64"
echo "                                          loss       gradient   weights    ratio: loss, gradient  choices that differ"
for precision in fp32 bf16; do
    if [ $precision = bf16 ] && [ -z "$(sh common/tools/gpus)" ]; then
        echo "bf16  not run: it computes on a GPU only, and there is none"
        continue
    fi
    train $precision 1 single --routes "$work/routes" "$@"
    single=$(distances single) || exit 1
    row $precision "a single device" single "$single"
    for mesh in "--fsdp 8 --ep 8" "--tp 8 --ep 8" "--cp 8 --ep 2" "--fsdp 2 --cp 2 --tp 2 --ep 4" "--dp 2 --tp 4 --ep 8"; do
        train $precision 8 mesh --routes "$work/routes" $mesh "$@"
        row $precision "$mesh" mesh "$single"
    done
done
