# The command line of tiny-hybrid, its meshes, and make quiz. Sourced by run.sh.

hybrid=build/fp32/tiny-hybrid
nano_moe="--model nano-moe --steps 3 --data LICENSE"
ddp=$hybrid # what refused() runs
refused "a mesh that needs other ranks" "the mesh --tp 2 --cp 2 --fsdp 2 needs 8 ranks; there are 4" 4 $nano_moe --tp 2 --cp 2 --fsdp 2
refused "ep and a replica that do not fit" "--ep 4: must divide the ranks that hold one copy of the other weights, 6, or be a multiple" 12 $nano_moe --fsdp 6 --dp 2 --ep 4
refused "experts without sequence parallelism" "--sp 0: not with experts: with --tp 2 each rank sends its own rows to them" 4 $nano_moe --tp 2 --sp 0
refused "whole sequences where they are cut" "--balance seq-aux: counts whole sequences on one rank; it goes with --tp 1 and --cp 1" 4 $nano_moe --cp 2 --balance seq-aux
refused "experts that do not divide" "--ep 8: must divide the number of experts, 4" 8 $nano_moe --experts 4 --ep 8
refused "flags of experts for a dense model" "--top-k 2: --model nano has no experts; --experts N gives it some" 2 --model nano --data LICENSE --top-k 2
refused "hsdp, which is a mesh here" "--strategy hsdp: here it is fsdp" 4 $nano_moe --strategy hsdp
refused "shards of a strategy that shards nothing" "--fsdp 2: --strategy ddp shards nothing; give these ranks to --dp" 4 $nano_moe --strategy ddp --fsdp 2 --dp 2
refused "rows that tp and cp cannot cut" "--seq 36: a rank along cp has 18 rows of a sequence; with --sp 1 these must be a multiple of --tp x --overlap-chunks = 4 x 1" 8 $nano_moe --tp 4 --cp 2 --seq 36
refused "verify of what depends on the ranks" "--verify: not with --capacity" 2 $nano_moe --verify --capacity 1
ddp=build/fp32/tiny-ddp

while read -r ranks flags; do
    run "$ranks" build/fp64/tiny-hybrid $nano_moe --verify --ledger --sample 3 $flags
    verdict "tiny-hybrid, $ranks ranks, $flags: verify passes, the ledger agrees" verified
done << 'END'
1
16 --dp 2 --fsdp 2 --cp 2 --tp 2 --ep 4
8 --fsdp 2 --cp 2 --tp 2 --ep 8 --accumulate 2 --ignore 0.5 --pack --recompute
8 --dp 2 --tp 2 --cp 2 --ep 2 --window 9 --method allgather --overlap-chunks 2 --accumulate-sharded 0 --accumulate 2
8 --dp 2 --tp 4 --ep 8 --strategy zero2 --shared-ff 8 --z-loss 0.01 --expert-overlap 1
6 --tp 2 --dp 3 --ep 2 --strategy ddp --router sigmoid --balance bias
8 --fsdp 2 --cp 4 --method ulysses --model nano --strategy zero3
END
run 8 build/fp32/tiny-hybrid $nano_moe --fsdp 2 --cp 2 --tp 2 --verify --ledger
verdict "tiny-hybrid: without --ep the experts are dealt over as many ranks as fit" grep -q '^ledger: ep .* equal' "$work/out"
run 1 build/fp32/tiny-hybrid --model nano-moe --show mesh --world 16 --dp 2 --fsdp 2 --cp 2 --tp 2 --ep 4
says_the_mesh() { grep -q '^mesh:   11    1    1    0    1    3$' "$work/out" && grep -q '^mesh: edp         2  same experts' "$work/out"; }
verdict "tiny-hybrid --show mesh: coordinates, groups" says_the_mesh
run 1 build/fp32/tiny-hybrid --model nano-moe --show plan --world 8 --fsdp 2 --cp 2 --tp 2
verdict "tiny-hybrid --show plan: the schedules of all schemes" [ "$(grep -c '^---' "$work/out")" = 4 ]

# curves FLAGS...: the losses of 50 steps on some ranks, in $work/curve.
curve() { # precision, ranks, flags
    local build=$1 ranks=$2
    shift 2
    run "$ranks" "build/$build/tiny-hybrid" --data LICENSE --steps 50 --log "$work/log" "$@"
    sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$work/log"
}
# near BOUND: are both curves of 50 losses, and nowhere further apart, relative to the loss?
near() {
    paste "$work/one" "$work/many" | awk -v bound="$1" '
        { d = $1 - $2; if (d < 0) d = -d; if (d > bound * $1) bad++ }
        END { exit bad > 0 || NR != 50 }'
}
curve fp32 1 --model nano > "$work/one"
for mesh in "--tp 2 --cp 2 --fsdp 2" "--tp 4 --dp 2" "--cp 4 --fsdp 2 --method ulysses" "--dp 2 --fsdp 4 --strategy zero1" "--tp 2 --dp 2 --cp 2 --overlap-chunks 2"; do
    curve fp32 8 --model nano $mesh > "$work/many"
    verdict "tiny-hybrid $mesh: the losses of 50 steps are a single device's, to fp32 rounding" near 1e-4
done
curve fp64 1 --model nano-moe > "$work/one"
curve fp64 8 --model nano-moe --tp 2 --cp 2 --fsdp 2 --ep 8 > "$work/many"
verdict "tiny-hybrid with experts: the losses of 50 steps are a single device's" near 1e-9

make --no-print-directory --dry-run grid N=3 > "$work/out" 2> "$work/err"
verdict "make grid: SEED and FIRST may be left out" grep -q '^N=3 SEED=1 FIRST=0 ' "$work/out"
make --no-print-directory --dry-run grid N=3 SEED=x > "$work/out" 2> "$work/err"
verdict "make grid: SEED must be a number" grep -q 'SEED=x: must be a whole number' "$work/err"

# The routes of one run, followed by others: on any mesh every row goes where it went.
flags="$nano_moe --accumulate 2"
run 1 build/fp64/tiny-hybrid $flags --save-routes "$work/routes" --recompute
one=$(grep -o '^step 3/3 .* norm [0-9.]*' "$work/out")
follows() { [ "$status" = 0 ] && grep -q "^routes: 0 of 27648 choices" "$work/out" && [ "$(grep -o '^step 3/3 .* norm [0-9.]*' "$work/out")" = "$one" ]; }
for mesh in "--tp 2 --cp 2 --fsdp 2 --overlap-chunks 2" "--tp 4 --dp 2 --ep 8 --recompute"; do
    run 8 build/fp64/tiny-hybrid $flags --routes "$work/routes" $mesh
    verdict "tiny-hybrid $mesh: follows the routes of a single device" follows
done
run 4 build/fp64/tiny-hybrid $flags --routes "$work/routes" --router sigmoid
verdict "tiny-hybrid: routes are followed against the router's choice" [ $status = 0 -a "$(sed -n 's/^routes: \([0-9]*\) of .*/\1/p' "$work/out")" -gt 100 ]
ddp=$hybrid
refused "routes of another batch" "--routes $work/routes: of another model, --batch, --seq or --accumulate" 2 $nano_moe --routes "$work/routes"
refused "routes of fewer steps" "--routes $work/routes: has 3 steps" 2 $flags --steps 4 --routes "$work/routes"
refused "routes that are none" "--routes LICENSE: no file of --save-routes" 2 $nano_moe --routes LICENSE
refused "routes for a dense model" "--routes $work/routes: goes with a model of experts" 2 --model nano --data LICENSE --routes "$work/routes"
refused "routes beside a twin" "--routes $work/routes: not with --verify" 2 $flags --verify --routes "$work/routes"
run 1 $hybrid $flags --routes "$work/routes" --log "$work/routes"
verdict "refused: a log in place of the routes" said 2 "the same file is given to --routes"
mkfifo "$work/pipe"
refused "routes from a pipe that nobody writes" "no file of --save-routes" 2 $nano_moe --routes "$work/pipe"
refused "routes written by two ranks" "goes with one rank" 2 $nano_moe --save-routes "$work/new/routes"
head -c 20000 "$work/routes" > "$work/cut"
refused "routes that end early" "--routes $work/cut: has 3 steps, of which not all may be written" 2 $flags --routes "$work/cut"
{ head -c 20000 "$work/routes" && printf '\377\377' && tail -c +20003 "$work/routes"; } > "$work/damaged"
{ head -c 56 "$work/routes" && printf '\001\000\001\000' && tail -c +61 "$work/routes"; } > "$work/twice"
refused "routes to one expert twice" "--routes $work/twice: a row goes to expert 1 twice" 2 $flags --routes "$work/twice"
refused "routes to an expert that is not there" "--routes $work/damaged: names expert 65535; the model has 8" 2 $flags --routes "$work/damaged"
ddp=build/fp32/tiny-ddp
make --no-print-directory CUDA=0 build/fp64/dump_distance PRECISION=fp64 > "$work/out" 2> "$work/err"
STEPS=2 bash tests/bench/drift.sh --data LICENSE > "$work/out" 2> "$work/err"
verdict "make drift: a line for a single device and for five meshes, all within fp32 rounding" [ "$(awk '$1 == "fp32" && $(NF - 5) < 1e-6 && $(NF - 6) < 1e-5 && $(NF - 7) < 1e-7' "$work/out" | wc -l)" = 6 ]

names=$(for seed in $(seq 60); do echo "build/fp64-bugs/tiny-hybrid --bug reveal:$seed"; done | sh | sort -u | wc -l)
verdict "make quiz: sixty seeds hide all its bugs" [ "$names" = 11 ]
answers() { printf 'wrong\nskip_norm_sum\n' | MPIRUN="$MPIRUN" MESH="--fsdp 2 --cp 2 --tp 2 --ep 4" SEED=$1 bash common/tools/quiz.sh > "$work/out" 2> "$work/err"; }
seed=1
until [ "$(build/fp64-bugs/tiny-hybrid --bug reveal:$seed)" = skip_norm_sum ]; do seed=$((seed + 1)); done
answers $seed
verdict "make quiz: the run fails, a wrong answer is refused, the right one accepted" [ "$(grep -cE '^verify: FAIL|No, not wrong\.|Yes\.$' "$work/out")" = 3 ]
verdict "make quiz: the run does not name the bug" [ "$(grep -c skip_norm_sum "$work/out")" = 0 ]
mkdir -p build/exercise
sh -c "cd build/exercise && $(grep -m1 '^sed .*my_hybrid.c$' tiny-hybrid/README.md | sed 's|tiny-hybrid/hybrid.c|../../&|')"
mine=build/fp64-debug/obj/build/exercise/my_hybrid.o
rm -f $mine
make --no-print-directory CUDA=0 PRECISION=fp64 DEBUG=1 $mine > "$work/out" 2> "$work/err"
verdict "the skeleton of my_hybrid.c compiles, and fills no seam" [ -s $mine -a "$(grep -c '(void)seams; /\* seams->' build/exercise/my_hybrid.c)" = 5 ]
run 8 build/fp32-san/tiny-hybrid $nano_moe --fsdp 2 --cp 2 --tp 2 --ep 4 --verify --accumulate 2 --sample 3
verdict "tiny-hybrid: the sanitizers find nothing" [ $status = 0 ]
run 8 build/fp64-debug/tiny-hybrid $nano_moe --fsdp 2 --cp 2 --tp 2 --ep 4 --verify --accumulate 2 --sample 3
verdict "tiny-hybrid: the debug build finds nothing" [ $status = 0 ]
