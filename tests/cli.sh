# The command line, as a user meets it: bad input, hangs, deaths, and what each flag writes. Sourced by run.sh.

# --- bad input ---

head -c 0 /dev/null > "$work/empty"
head -c 20 LICENSE > "$work/short"
{ # a token file of four, the third outside a vocabulary of 256
    printf '\210\330\064\001\001\000\000\000\004\000\000\000'
    head -c 1012 /dev/zero
    printf '\001\000\002\000\000\001\003\000'
} > "$work/tokens.bin"
refused "unknown flag" "--stpes" 2 $nano --stpes 4
refused "unknown preset" "--model huge: neither a preset (nano, demo," 2 --model huge
presets=$(grep -o "(nano[^)]*)" "$work/err" | tr -d "()")
run 1 $ddp --help
verdict "--help names the same presets: $presets" grep -qF -- "$presets, or a folder" "$work/out"
refused "unknown kernel" "--kernel linear=magic" 2 $nano --kernel linear=magic
refused "batch does not divide by ranks" "--batch 48: must be a multiple of data ranks x --accumulate = 5 x 1" 5 $nano
refused "batch does not divide by accumulate" "--batch 48: must be a multiple of data ranks x --accumulate = 2 x 5" 2 $nano --accumulate 5
refused "sequence longer than the data" "--seq 48: a sequence and its labels need 49 tokens" 2 $nano --data "$work/short"
refused "empty data" "the file is empty" 3 $nano --data "$work/empty"
refused "missing data" "--data $work/none: No such file" 3 $nano --data "$work/none"
refused "token outside the vocabulary" "tokens.bin: token 256 at offset 2 is outside the vocabulary of 256" 2 $nano --seq 3 --data "$work/tokens.bin"
refused "zero batch" "--batch 0: must be a whole number from 1" 2 $nano --batch 0
refused "negative steps" "--steps -3: must be a whole number from 1" 2 $nano --steps -3
refused "not a number" "--seq ten: must be a whole number" 2 $nano --seq ten
refused "NaN learning rate" "--lr nan: must be a number" 2 $nano --lr nan
refused "fewer ranks than the mesh needs" "the mesh --dp 4 needs 4 ranks; there are 2" 2 $nano --dp 4
refused "more ranks than the mesh has" "the mesh --dp 2 needs 2 ranks; there are 3" 3 $nano --dp 2
refused "--world without --show" "--world 8: goes with --show" 1 $nano --world 8
refused "bug in a build without bugs" "this build has no bugs" 2 $nano --bug mean_of_means
refused "a model folder without weights" "config.json" 2 --model tests
refused "a batch too large to count" "must be at most" 2 $nano --batch 100000000
refused "a switch with a value" "--ledger=1: takes no value" 2 $nano --ledger=1
refused "a value where none belongs" "stray: not a flag" 2 $nano stray

# Data that changes while it is read: a file of tokens of 16 bits, then of text.
changes() { # what the complaint must say, a command that changes $work/data.bin
    { printf '\210\330\064\001\001\000\000\000\000\040\000\000'; head -c 1012 /dev/zero; head -c 16384 /dev/zero; } > "$work/data.bin"
    $ddp --model nano --data "$work/data.bin" --steps 1000000 > "$work/out" 2> "$work/err" &
    local runs=$! tries=0
    until [ "$(wc -l < "$work/out")" -gt 4 ] || [ $((tries++)) -gt 300 ]; do sleep 0.1; done
    eval "$2"
    tries=0
    while kill -0 $runs 2> /dev/null && [ $((tries++)) -lt 300 ]; do sleep 0.1; done
    kill -9 $runs 2> /dev/null
    wait $runs
    status=$?
    said 1 "$1"
}
verdict "data that is overwritten ends the run" changes 'it has changed; token 65535' \
    'head -c 16384 /dev/zero | tr "\000" "\377" | dd of="$work/data.bin" bs=1024 seek=1 conv=notrunc 2> /dev/null'
verdict "data that is cut short ends the run" changes 'cut short while it was read' ': > "$work/data.bin"'

mkdir "$work/mixed"
cp LICENSE "$work/mixed/text"
if truncate -s 900G "$work/mixed/large" 2> /dev/null; then
    run 2 $ddp --model nano --steps 1 --data "$work/mixed"
    verdict "a folder is read without what is no text, however large" grep -q '^step 1/1' "$work/out"
fi

tr a-z b-za < LICENSE > "$work/other"
mkdir "$work/a" "$work/b"
cp LICENSE "$work/a/text"
cp "$work/other" "$work/b/text"
run 1 --wdir "$work/a" "$PWD/$ddp" --model nano --data text : -n 2 --wdir "$work/b" "$PWD/$ddp" --model nano --data text
verdict "ranks that read different data are refused" said 2 'the ranks do not read the same tokens'
run 1 $ddp $nano : -n 2 $ddp $nano --lr 0.5
verdict "ranks with different flags are refused" said 2 'the ranks were started with different flags'
echo precious > "$work/keep"
run 2 $ddp $nano --log "$work/keep" --dump "$work/none/file"
verdict "a refused run leaves an existing log alone" [ $status = 2 -a "$(cat "$work/keep")" = precious ]
cp LICENSE "$work/text"
run 2 $ddp --model nano --steps 2 --data "$work/text" --log "$work/text"
verdict "a log over the data is refused" said 2 'the same file is given to --data'
verdict "and the data is still there" cmp -s LICENSE "$work/text"
run 2 $ddp $nano --log "$work/twice" --dump "$work/twice"
verdict "one file for two outputs is refused" said 2 'the same file is given to'
run 2 $ddp $nano --log "$work/twice" --dump "$work/a/../twice"
verdict "by whatever name" said 2 'the same file is given to --log'
echo precious > "$work/stream"
$ddp $nano --log "$work/stream" >> "$work/stream" 2> "$work/err"
status=$?
verdict "a log where standard output goes is refused" said 2 'standard output goes there'
verdict "and what is there stays" [ "$(cat "$work/stream")" = precious ]
$ddp $nano > /dev/full 2> "$work/err"
status=$?
verdict "a step line that cannot be written is a failure" said 1 'standard output: not all could be written'
$ddp $nano --sample 1 --prompt "$(printf 'caf\351')" --log "$work/latin" > "$work/out" 2> "$work/err"
verdict "--log is UTF-8 whatever a flag holds" iconv -f utf-8 -t utf-8 -o /dev/null "$work/latin"
run 2 $ddp --model "$(printf 'two\nlines')"
verdict "a complaint is one line, whatever a name holds" [ $status = 2 -a "$(wc -l < "$work/err")" = 1 ]
run 2 $ddp $nano --log /dev/full
verdict "a full disk under --log is a failure" said 1 '--log /dev/full: No space left'
for flag in log dump trace; do
    run 2 $ddp $nano --$flag "$work/none/file"
    verdict "a --$flag that cannot be written is refused" said 2 "^--$flag $work/none/file: No such file"
done

ln -s "$work/nowhere" "$work/dangling"
mkfifo "$work/pipe"
mkdir "$work/texts" && cp LICENSE "$work/texts"
for output in "dangling: a link to nothing" "pipe: neither a file nor a device" "texts: Is a directory" "texts/log: lies in --data"; do
    file=$work/${output%%:*}
    run 2 $ddp --model nano --steps 2 --data "$work/texts" --log "$file"
    verdict "--log is refused: $output" said 2 "^--log $file:${output#*:}"
done
ln -s "$work/texts/LICENSE" "$work/inwards"
run 2 $ddp --model nano --steps 2 --data "$work/texts" --log "$work/inwards"
verdict "--log is refused: a link into the data" said 2 "^--log $work/inwards: lies in --data"
run 2 $ddp $nano --log "$work/keep" --dump "$work/new-one/"
verdict "--dump is refused: a name that ends like a folder's" said 2 "^--dump $work/new-one/: Is a directory"
cp -r tests/fixtures/qwen3 "$work/model"
head -c 600 LICENSE | tr "\200-\377" " " > "$work/ascii" # the fixtures have few words
loads="--model $work/model --data $work/ascii --seq 16 --batch 4 --steps 1"
run 2 $ddp $loads --dump "$work/model/model.safetensors"
verdict "--dump is refused: the model's own weights" said 2 "^--dump $work/model/model.safetensors: is a file of --model"
printf xx >> "$work/model/model.safetensors"
run 2 $ddp $loads --log "$work/keep"
verdict "weights with bytes that nobody owns are refused" said 2 "^--model $work/model: .* bytes, and .* follow the header"
verdict "and the log is still what it was" [ "$(cat "$work/keep")" = precious ]
verdict "and nothing has come or gone" [ -L "$work/dangling" -a ! -e "$work/nowhere" -a -p "$work/pipe" -a "$(ls "$work/texts")" = LICENSE ]

for threads in 1 2; do
    [ "$threads" -le "$(getconf _NPROCESSORS_ONLN)" ] || continue
    OMP_NUM_THREADS=$threads run 1 $ddp $nano
    verdict "a rank runs on OMP_NUM_THREADS=$threads threads" grep -q "^model nano.* threads: $threads)" "$work/out"
done

# --- what flags write ---

run 1 $ddp --help
verdict "--help lists the flags" grep -q -- '--bucket-mb' "$work/out"
run 1 $ddp --bug list
verdict "--bug list tells the stories" grep -q mean_of_means "$work/out"

run 3 $ddp $nano --verify --ledger --log "$work/log" --trace "$work/trace" --dump "$work/dump" --sample 20
verdict "a whole run ends well" [ $status = 0 ]
verdict "--verify passes" grep -q '^verify: PASS' "$work/out"
verdict "--ledger agrees" [ "$(grep -c equal "$work/out")" -ge 7 -a "$(grep -c DIFFERS "$work/out")" = 0 ]
verdict "--log: the first line is the configuration" grep -qE '"model":"nano".*"batch":48.*"bucket-mb":1,.*"architecture":\{"layers":2.*"ranks":3' <(head -1 "$work/log")
verdict "--log: the learning rate of each step" grep -q '"lr":0.0033' <(sed -n 2p "$work/log")
verdict "--log: then a line per step" [ "$(grep -c '"step":[123],"loss"' "$work/log")" = 3 ]
for r in 0 1 2; do
    verdict "--trace: rank $r computes" grep -q "\"name\":\"layer 1 backward\",\"cat\":\"compute\",\"pid\":$r" "$work/trace"
    verdict "--trace: rank $r communicates" grep -q "\"name\":\"all_reduce\",\"cat\":\"comm\",\"pid\":$r" "$work/trace"
done
run 1 build/fp32/read_json "$work/trace" "$work/log"
cat > "$work/spans" << 'END_OF_TRACE'
{"traceEvents":[
{"ph":"X","name":"step 1","cat":"compute","pid":0,"tid":0,"ts":0.000,"dur":9000.000},
{"ph":"X","name":"step 2","cat":"compute","pid":0,"tid":0,"ts":10000000.000,"dur":10000.000},
{"ph":"X","name":"all_reduce","cat":"comm","pid":0,"tid":2,"ts":9999000.000,"dur":2000.000,"args":{"bytes":8}},
{"ph":"X","name":"all_reduce","cat":"comm","pid":0,"tid":3,"ts":10000500.000,"dur":1500.000,"args":{"bytes":8}},
{"ph":"X","name":"all_reduce","cat":"comm","pid":1,"tid":3,"ts":10004000.000,"dur":1000.000,"args":{"bytes":8}},
{"ph":"X","name":"all_gather","cat":"comm","pid":0,"tid":3,"ts":10009000.000,"dur":3000.000,"args":{"bytes":8}},
{"ph":"X","name":"wait","cat":"compute","pid":0,"tid":0,"ts":10001500.000,"dur":500.000},
{"ph":"X","name":"wait","cat":"host","pid":0,"tid":1,"ts":10003000.000,"dur":500.000},
{"ph":"X","name":"wait","cat":"compute","pid":0,"tid":0,"ts":10009700.000,"dur":750.000}
]}
END_OF_TRACE
verdict "common/tools/hidden: spans that overlap count once, and only in the step" [ "$(sh common/tools/hidden "$work/spans" 2)" = "step 2  10.0 ms  collectives 3.0 ms  waits 0.8 ms  hidden 0.73" ]
verdict "--trace names its lanes" grep -q '"args":{"name":"comm dp"}' "$work/trace"
verdict "--trace and --log are JSON, and spans of a lane do not overlap" [ $status = 0 ]

for ranks in 1 2 3 4 8; do
    run $ranks build/fp64/tiny-ddp $nano --verify --accumulate 2 --ignore 0.5
    verdict "verify passes in fp64 on $ranks ranks" grep -qE '^verify: PASS .*bounds 1e-12, 1e-09' "$work/out"
    run $ranks $ddp $nano --verify
    verdict "verify passes in fp32 on $ranks ranks" grep -qE '^verify: PASS .*bound 1e-05' "$work/out"
done
run 3 build/fp32-noblas/tiny-ddp $nano --verify
verdict "verify passes without BLAS" grep -q '^verify: PASS' "$work/out"
run 2 $ddp $nano --verify --kernel linear=naive,attention=naive
verdict "verify passes with naive kernels" grep -q '^verify: PASS' "$work/out"
run 2 build/fp64/tiny-ddp --device cpu --model tests/fixtures/qwen3 --seq 20 --batch 4 --data tests/fixtures/qwen3/config.json --steps 2 --verify
verdict "a folder from transformers trains, and verifies" grep -q '^verify: PASS' "$work/out"
verdict "with its own weights" grep -q '^step 1/2  loss 4.9796' "$work/out"
odd_model() { # name, sed script over config.json
    rm -rf "$work/model"
    cp -r tests/fixtures/llama "$work/model"
    sed -i "$2" "$work/model/config.json"
    run 2 $ddp --model "$work/model" --data LICENSE --seq 8 --batch 2 --steps 1
    verdict "refused: config.json with $1" [ $status = 2 -a "$(wc -l < "$work/err")" = 1 ]
}
odd_model "another activation" 's/"silu"/"gelu"/'
odd_model "a string for a number" 's/"hidden_size": 32/"hidden_size": "32"/'
odd_model "a fraction for a whole number" 's/"vocab_size": 131/"vocab_size": 131.5/'
odd_model "fewer layers than the weights have" 's/"num_hidden_layers": 2/"num_hidden_layers": 1/'
odd_model "absurdly many layers" 's/"num_hidden_layers": 2/"num_hidden_layers": 400000000/'
odd_model "biases" 's/"attention_bias": false/"attention_bias": true/'
odd_model "no heads" 's/"num_attention_heads": 4/"num_attention_heads": 0/'
verdict "which names the folder that was given" grep -qF -- "--model $work/model: config.json: num_attention_heads is 0" "$work/err"
odd_model "dropout" 's/"attention_dropout": 0.0/"attention_dropout": 0.1/'
odd_model "quantized weights" 's/"vocab_size"/"quantization_config": {"bits": 4}, "vocab_size"/'
cp tests/fixtures/llama/config.json "$work/model"
sed -i 's/\[67584,71680\]/[63488,67584]/' "$work/model/model.safetensors" # q_proj where o_proj is
run 2 $ddp --model "$work/model" --data LICENSE --seq 8 --batch 2 --steps 1
verdict "refused: weights in which two tensors are the same bytes" said 2 'does not begin where another ends'
run 2 $ddp --model nano --data LICENSE --steps 1 --verify --batch 8000 --seq 1 --accumulate 4000
verdict "verify allows for the rounding of four thousand micro-steps" grep -q '^verify: PASS' "$work/out"
run 3 build/fp32-san/tiny-ddp $nano --verify --ledger --accumulate 2 --sample 5 --trace "$work/trace2"
verdict "sanitizers find nothing" [ $status = 0 ]
run 3 build/fp64-debug/tiny-ddp $nano --verify --sample 5
verdict "the debug build finds nothing" [ $status = 0 ]

# the verdict of --verify is FAIL, and the status 1, for each bug
for bug in mean_of_means reduce_every_micro_step forget_last_bucket skip=dp.all_reduce skip=dp.all_reduce.2 skip=data.all_reduce.1; do
    run 3 build/fp64-bugs/tiny-ddp $nano --verify --accumulate 2 --ignore 0.5 --bucket-mb 0.005 --bug $bug
    verdict "verify fails under --bug $bug" [ $status = 1 ]
    verdict "verify says FAIL under --bug $bug" grep -q '^verify: FAIL' "$work/out"
done
run 3 build/fp64-bugs/tiny-ddp $nano --ledger --accumulate 2 --bug reduce_every_micro_step
verdict "the ledger sees what is sent twice" [ $status = 1 -a "$(grep -c DIFFERS "$work/out")" = 1 ]
verdict "a bug that acted leaves no note" [ "$(grep -c 'never came' "$work/out")" = 0 ]
run 3 build/fp64-bugs/tiny-ddp $nano --bug skip_norm_sum
verdict "one that the run never came to does" grep -q '^note: --bug skip_norm_sum: this run never came to its place' "$work/out"
run 3 build/fp64-bugs/tiny-ddp $nano --bug rank_seeded_init
verdict "unequal first weights are refused" said 2 'the ranks start from different weights'

# --dump is the same file whatever the mesh, to rounding; here the same mesh, to the bit
run 2 $ddp $nano --dump "$work/dump1"
run 2 $ddp $nano --dump "$work/dump2" --overlap 0
verdict "--dump: overlapped or not, the same bytes" cmp -s "$work/dump1" "$work/dump2"

for what in mesh shards memory plan; do
    run 1 $ddp --model 1b --show $what --world 4
    verdict "--show $what" [ $status = 0 -a "$(wc -l < "$work/out")" -gt 4 ]
done
run 2 $ddp $nano --show memory
run_total=$(awk '/total/ {print $2}' "$work/out")
run 2 $ddp $nano --ledger
held=$(awk '/^ledger: (parameters|gradients|optimizer|activations|buffers)/ {s += $3} END {print s}' "$work/out")
verdict "--show memory is what the run then holds" [ "$run_total" = "$held" ]

step_mode() { # Enter, twice for each of three steps' four pauses
    yes '' | timeout -k 5 60 $MPIRUN -q -n 2 $ddp $nano --step > "$work/out" 2> "$work/err"
    grep -q '  rank 1: forward 1 done' "$work/out" && grep -q '  rank 0: reduced; norm of the gradients' "$work/out"
}
status=0
verdict "--step shows each rank at each phase" step_mode
