# Data and outputs, as a user meets them: kinds of data, what a folder leaves out, files that a run may not touch, full disks,
# closed streams, too little memory. Sourced by run.sh, after cli.sh, whose $ddp and refused() it uses.

nano="--model nano --steps 3 --data LICENSE"

# tokens KIND VERSION FILE: 4096 tokens below 256 in a layout of llm.c. KIND: gpt2 (16 bits) or llama3 (32 bits).
tokens() {
    local magic='\210\330\064\001' padding='\0'
    if [ "$1" = llama3 ]; then magic='\241\331\064\001' padding='\0\0\0'; fi
    { # the header, of 1024 bytes; then a, b, c, d
        printf "$magic\\$2\0\0\0\0\020\0\0"
        head -c 1012 /dev/zero
        printf "a${padding}b${padding}c${padding}d$padding%.0s" $(seq 1024)
    } > "$3"
}

failed_once() { # status, text: the last run ended so, and one line on stderr says this; ranks that it ended may say where they were
    [ "$status" = "$1" ] && [ "$(grep -cv 'ended by a signal' "$work/err")" = 1 ] && grep -qF -- "$2" "$work/err"
}

# --- kinds ---

mkdir "$work/kinds" "$work/shards" "$work/both" "$work/texts.d"
tokens gpt2 1 "$work/kinds/gpt2"
tokens llama3 7 "$work/kinds/llama3"
cp LICENSE "$work/kinds/text.bin"
for kind in gpt2 llama3 text.bin; do
    run 2 $ddp --model nano --steps 1 --data "$work/kinds/$kind" --log "$work/log.$kind"
    verdict "--data: $kind trains, under any name" [ $status = 0 ]
done
verdict "bytes in a vocabulary of bytes need no note" [ "$(grep -c ^note "$work/out")" = 0 ]
loss() { grep -o '"loss":[0-9.e-]*' "$1"; }
verdict "and 16 or 32 bits are the same tokens" [ "$(loss "$work/log.gpt2")" = "$(loss "$work/log.llama3")" ]
refused "a folder of several kinds" "a folder of data must hold one kind" 3 --model nano --data "$work/kinds"
tokens gpt2 1 "$work/shards/a"
tokens gpt2 1 "$work/shards/b"
run 2 $ddp --model nano --steps 1 --data "$work/shards"
verdict "a folder of files of tokens is one corpus" grep -q "^data .*/shards: 8192 tokens;" "$work/out"
{ cat LICENSE; printf '\351'; } > "$work/latin1"
run 2 $ddp --model tests/fixtures/llama --data "$work/latin1" --seq 8 --batch 2 --steps 1
verdict "bytes outside the vocabulary are refused" failed_once 2 "latin1: byte 233 at offset 1083 is outside the vocabulary of 131"
run 2 $ddp --model tests/fixtures/llama --data LICENSE --seq 8 --batch 2 --steps 1
verdict "bytes in another vocabulary are said" [ $status = 0 -a "$(grep -c '^note: --data LICENSE is text, read as bytes: tokens from 0 to 255, in a vocabulary of 131$' "$work/out")" = 1 ]

cp LICENSE "$work/texts.d/text"
printf 'x\0' > "$work/texts.d/binary"
: > "$work/texts.d/empty"
echo x > "$work/texts.d/.hidden"
ln -s . "$work/texts.d/loop"
ln -s "$work/shards" "$work/both/shards"
run 3 $ddp --model nano --steps 1 --data "$work/texts.d"
verdict "what a folder leaves out is said once" [ $status = 0 -a "$(grep -c "^data .*/texts.d: 4 files or folders left out: 1 hidden (.hidden), 1 binary (binary), 1 empty (empty), 1 read under another name (loop)$" "$work/out")" = 1 ]
refused "an output in a folder that a link leads to" "lies in --data $work/both" 2 --model nano --data "$work/both" --autotune "$work/shards/tuned"

# --- a run that is refused touches no file ---

echo precious > "$work/keep"
run 2 $ddp $nano --autotune "$work/unborn" --log "$work/keep" --dump "$work/unborn2" --trace /proc/none
verdict "an output that cannot be made: nothing is written" [ $status = 2 -a ! -e "$work/unborn" -a ! -e "$work/unborn2" -a "$(cat "$work/keep")" = precious ]
run 2 build/fp64-bugs/tiny-ddp $nano --bug rank_seeded_init --autotune "$work/unborn" --log "$work/keep"
verdict "first weights that differ: nothing is written" [ $status = 2 -a ! -e "$work/unborn" -a "$(cat "$work/keep")" = precious ]

# --- a full disk, at the first write ---

for flag in dump trace; do
    run 2 $ddp $nano --$flag /dev/full
    verdict "--$flag on a full disk fails" failed_once 1 "--$flag /dev/full: No space left on device"
    verdict "and no step was made" [ "$(grep -c '^step' "$work/out")" = 0 ]
done
limited() { # KiB that a file may have, flag, steps: run with --flag
    run 2 bash -c "ulimit -f $1; exec $ddp --model nano --data LICENSE --steps $3 --$2 $work/limited"
}
limited 1 log 60
verdict "--log on a disk that fills up fails" failed_once 1 "--log $work/limited: File too large"
verdict "at once" [ "$(grep -c '^step' "$work/out")" -lt 10 ]
limited 16 dump 50
verdict "--dump on a disk that fills up fails" failed_once 1 "--dump $work/limited: File too large"
verdict "at once" [ "$(grep -c '^step' "$work/out")" = 0 ]
limited 4 trace 5
verdict "--trace on a disk that fills up fails" failed_once 1 "--trace $work/limited: File too large"

{ echo "# kernels chosen by --autotune"; printf '%993s' x; } > "$work/limited"
limited 1 autotune 1
verdict "--autotune on a disk that fills up fails" failed_once 1 "--autotune $work/limited: File too large"

# --- streams that are closed at the start ---

$ddp $nano --log "$work/log" --trace "$work/trace" --dump "$work/dump" >&- 2>&-
status=$?
build/fp32/read_json "$work/trace" "$work/log" > "$work/out" 2> "$work/err"
verdict "closed streams: the outputs hold what they should" [ $? = 0 -a $status = 0 -a "$(grep -c '"loss"' "$work/log")" = 3 ]
$ddp $nano --lr 1e30 --clip 0 --warmup 0 --log "$work/log" <&- >&- 2>&-
status=$?
verdict "closed streams: an error line does not go into a file" [ $status = 1 -a "$(grep -cv '^{' "$work/log")" = 0 ]

# --- too little memory ---

starved() { # KiB of addresses, flags... Threads take addresses, and so does a GPU.
    local limit=$1
    shift
    OMP_NUM_THREADS=1 run 2 bash -c "ulimit -v $limit; exec build/fp32-noblas/tiny-ddp $*" # CUDA's libraries alone take more
}
ran_out() { # text: of one or both ranks
    [ "$status" = 1 ] && grep -qE -- "^rank [01] on .*: out of memory $1" "$work/err" &&
        ! grep '^rank' "$work/err" | grep -qvE 'out of memory|ended by a signal' # what Open MPI adds is its own
}
starved 1500000 --model 350m --data README.md --seq 256 --batch 2 --steps 1
verdict "too little memory for the weights" ran_out "on the cpu: [0-9]* bytes for parameters, beside [0-9]* that this rank holds"
if truncate -s 8G "$work/huge" 2> /dev/null; then
    starved 4000000 --model nano --steps 1 --data "$work/huge"
    verdict "too little memory to map a file of data" ran_out "for --data $work/huge"
fi
mkdir "$work/large"
head -c 300000000 /dev/zero | tr '\000' a > "$work/large/text"
starved 550000 --model nano --steps 1 --data "$work/large"
verdict "too little memory for a folder of data" ran_out "for --data $work/large/text"
rm -r "$work/large"
