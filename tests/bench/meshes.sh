#!/bin/bash
# Verifies tiny-hybrid on twelve meshes of 8 and 16 ranks, in every precision that was built, and prints a line for each.
#
#   meshes.sh [FLAGS...]     e.g. --device cuda
set -u
cd "$(dirname "$0")/../.."
MPIRUN=${MPIRUN:-mpirun}
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
while read -r ranks model flags; do
    case $model in *moe) flags="$flags --expert-room 4" ;; esac # on a GPU the default is 2, too little for so few rows
    for build in ${BUILDS:-fp64 fp32 bf16}; do
        [ -x build/$build/tiny-hybrid ] || continue
        timeout -k 5 120 $MPIRUN -q -n "$ranks" build/$build/tiny-hybrid --model "$model" --data LICENSE --steps 3 --verify \
            --ledger --accumulate 2 $flags "$@" < /dev/null > "$log" 2>&1
        status=$?
        grep -q DIFFERS "$log" && status="$status, and the ledger differs"
        [ "$status" = 0 ] || failed=$((failed + 1))
        printf '%-4s %2d ranks  %-9s %-58s %s%s\n' $build "$ranks" "$model" "$flags" \
            "$(sed -n 's/^verify: \([PF].*\)/\1/p' "$log")" "$([ "$status" = 0 ] || echo " (status $status)")"
        [ "$status" = 0 ] || grep -vE '^(step|ledger|mesh|model|data)' "$log" | head -5
    done
done << 'END'
8 nano-moe --fsdp 2 --cp 2 --tp 2 --ep 4
8 nano-moe --fsdp 2 --cp 2 --tp 2 --ep 8 --recompute
8 nano-moe --dp 2 --cp 2 --tp 2 --ep 2 --method allgather
8 nano-moe --dp 2 --tp 4 --ep 8 --shared-ff 8 --expert-overlap 1
8 nano-moe --fsdp 8 --ep 4 --pack --window 20
8 nano --tp 2 --cp 4 --method ulysses
8 nano --dp 2 --fsdp 2 --tp 2 --strategy zero3
8 nano --tp 8 --sp 0
16 nano-moe --dp 2 --fsdp 2 --cp 2 --tp 2 --ep 4
16 nano-moe --fsdp 2 --cp 4 --tp 2 --ep 8 --router sigmoid --balance bias
16 nano-moe --dp 4 --tp 4 --ep 8 --strategy zero1
16 nano --fsdp 4 --cp 2 --tp 2 --overlap-chunks 2
END
[ "$failed" = 0 ] || echo "$failed runs failed"
[ "$failed" = 0 ]
