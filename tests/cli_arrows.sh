# The arrows of common/, by what its files include: a folder uses only itself and the folders before it, and no trainer.
# A trainer uses common/, itself, and of the other trainers only tiny-ddp's ddp.h; tiny-hybrid uses all. Sourced by run.sh.

storeys="base kernels comm data model settings observe tune train"

# wrong_arrows ROOT: a line for each include that goes the wrong way. common/ is searched for files, then the trainers' folders;
# a name without a folder is one of the file's own folder, or a trainer's.
wrong_arrows() {
    (cd "$1" && grep -rHoE --include='*.[ch]' --include='*.cu' --include='*.cuh' '^#include "[^"]+"' common tiny-* |
        sed 's/:#include "/ /; s/"$//' | while read -r file header; do
        case $header in
        */*) found=common/$header ;;
        *) found=$(ls "${file%/*}/$header" tiny-*/"$header" 2> /dev/null | head -1) ;;
        esac
        echo "$file ${found:-$header} $([ -f "${found:-$header}" ] && echo 1 || echo 0)"
    done) | awk -v storeys="$storeys" '
        BEGIN { n = split(storeys, s, " "); for (i = 1; i <= n; i++) order[s[i]] = i }
        function says(why) { print $1 " includes " $2 ": " why }
        {
            split($1, from, "/"); split($2, to, "/")
            if (!$3) says("no such file")
            else if (from[1] != "common" && to[1] != "common") {
                if (from[1] != to[1] && $2 != "tiny-ddp/ddp.h" && from[1] != "tiny-hybrid") says("another trainer")
            } else if (from[1] != "common") next
            else if (to[1] != "common") says("a trainer")
            else if (!order[from[2]] || !order[to[2]]) says("a folder with no place in the order " storeys)
            else if (order[from[2]] < order[to[2]]) says("a later folder")
        }'
}

arrows() { # ROOT: judges, and leaves the lines in $work/err
    wrong_arrows "$1" > "$work/err"
    [ ! -s "$work/err" ]
}
verdict "includes go from later folders of common/ to earlier ones" arrows .

# It sees each kind of wrong arrow.
mkdir -p "$work/tree/common/base" "$work/tree/common/comm" "$work/tree/tiny-ddp" "$work/tree/tiny-fsdp" "$work/tree/tiny-megatron"
for header in common/base/error.h common/comm/comm.h tiny-ddp/ddp.h tiny-fsdp/sharding.h tiny-megatron/tensor_parallel.h; do
    : > "$work/tree/$header"
done
echo '#include "comm/comm.h"' > "$work/tree/common/base/upwards.c"
echo '#include "sharding.h"' > "$work/tree/common/comm/trainer.c"
echo '#include "base/none.h"' > "$work/tree/common/comm/missing.c"
echo '#include "sharding.h"' > "$work/tree/tiny-megatron/another.c"
printf '#include "%s"\n' ddp.h sharding.h comm/comm.h > "$work/tree/tiny-fsdp/good.c"
printf '#include "%s"\n' error.h > "$work/tree/common/base/good.c"
wrong_arrows "$work/tree" | sort > "$work/out"
sees_wrong_arrows() {
    [ "$(wc -l < "$work/out")" = 4 ] && grep -q '^common/base/upwards.c .*: a later folder' "$work/out" &&
        grep -q '^common/comm/trainer.c .*: a trainer' "$work/out" && grep -q '^common/comm/missing.c .*: no such file' "$work/out" &&
        grep -q '^tiny-megatron/another.c .*: another trainer' "$work/out"
}
verdict "the check of the arrows sees wrong ones" sees_wrong_arrows
