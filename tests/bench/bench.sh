#!/bin/bash
# make bench on the CPU: prints the FLOP rate of a step beside that of cblas_sgemm at the shapes of the layers, then
# tokens/s and bytes held by a rank for the demo preset on 1, 2 and 4 ranks. Both sides of a ratio are measured in the
# same run of this script. Numbers of a step are medians over all steps but the first five.
set -eu
cd "$(dirname "$0")/../.."
. tests/lib.sh
build=build/${BUILD:-fp32}
log=$work/log

# median NAME: the median of this number over the log's steps
median() {
    grep '"step"' "$log" | tail -n +6 | sed "s/.*\"$1\":\([0-9.e+-]*\).*/\1/" | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}

echo "$(nproc) cores: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(date +%F)"
"$build/gemm_rate" demo bench > "$work/rates"
kernel=$(sed -n 's/^kernel //p' "$work/rates")
echo "OpenBLAS kernel: $kernel${OPENBLAS_CORETYPE:+ (OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE)}"
if grep -q avx512f /proc/cpuinfo; then
    case $kernel in
    SkylakeX | Cooperlake | SapphireRapids) ;;
    *) echo "warning: this processor has AVX-512, but OpenBLAS chose $kernel; try OPENBLAS_CORETYPE=SkylakeX" ;;
    esac
fi

echo
echo "one rank, all cores            cblas_sgemm      a step       ratio (bar: 0.60)"
for model in demo bench; do
    "$build/tiny-ddp" --device cpu --model $model --steps 40 --log "$log" > /dev/null
    flops=$(median flops_per_second)
    rate=$(awk -v m=$model '$1 == "rate" && $2 == m {print $3}' "$work/rates")
    awk -v m=$model -v r="$rate" -v f="$flops" 'BEGIN {printf "  %-24s %8.1f GFLOP/s %8.1f GFLOP/s   %.2f\n", m, r, f * 1e-9, f * 1e-9 / r}'
done

echo
echo "demo preset        tokens/s   bytes held by each rank (parameters, gradients, optimizer, activations)"
for ranks in 1 2 4; do
    $MPIRUN -q -n $ranks "$build/tiny-ddp" --device cpu --model demo --steps 40 --log "$log" --ledger > "$work/out"
    held=$(awk '/^ledger: (parameters|gradients|optimizer|activations|buffers)/ {s += $3} END {print s}' "$work/out")
    printf '  %d rank%s %17.0f   %d\n' $ranks "$([ $ranks = 1 ] && echo ' ' || echo s)" "$(median tokens_per_second)" "$held"
done
