# Files and values as they should not be, as a user meets them. Sourced by run.sh, after cli.sh. (All cases: test_config.c, test_options.c.)

refused_alone() { # name, what the line must hold, flags...: without mpirun, which is quicker
    local name=$1 text=$2
    shift 2
    timeout -k 5 60 $ddp "$@" > "$work/out" 2> "$work/err" < /dev/null
    status=$?
    one_line() { [ "$status" = 2 ] && [ "$(wc -l < "$work/err")" = 1 ] && grep -qF -- "$text" "$work/err"; }
    verdict "refused: $name" one_line
}

rm -rf "$work/model"
cp -r tests/fixtures/qwen3 "$work/model"
model="--model $work/model --data $work/ascii --seq 16 --batch 4 --steps 1"
head -c 600 LICENSE | tr "\200-\377" " " > "$work/ascii" # the fixtures have few words
run 1 $ddp $model
verdict "a small model trains" said 0
printf '\377\377\377\377' | dd of="$work/model/model.safetensors" bs=1 conv=notrunc seek=$(($(wc -c < "$work/model/model.safetensors") - 4)) 2> /dev/null
refused "weights that are not finite" "--model $work/model: model.norm.weight holds a weight that is not finite" 2 $model
cp tests/fixtures/qwen3/model.safetensors "$work/model"
sed -i 's/"rope_type"/"type"/; s/"default"/"linear"/' "$work/model/config.json"
refused "RoPE of another kind, by its older key" 'config.json: type is "linear"; only "default" is supported' 2 $model
if truncate -s 200G "$work/model/config.json" 2> /dev/null; then
    refused_alone "a config.json of 200 GB" "config.json: 214748364800 bytes; must be at most 1048576" $model
fi
rm -rf "$work/model"

printf '# kernels chosen by --autotune\nmore\0' > "$work/tuned"
refused_alone "a file of --autotune with a NUL byte" "--autotune $work/tuned: is there, and not a file of --autotune" $nano --autotune "$work/tuned"
if truncate -s 200G "$work/tuned" 2> /dev/null; then
    refused_alone "and one of 200 GB" "--autotune $work/tuned: " $nano --autotune "$work/tuned"
fi
rm -f "$work/tuned"

refused_alone "a number too close to 0" "--lr 1e-400: too close to 0 for a double" $nano --lr 1e-400
long=$(head -c 9000 /dev/zero | tr '\0' 9)
refused_alone "a long value, with the reason after it" "99: must be a whole number from 1 to 2147483647" $nano --steps "$long"
refused_alone "a value that colours the terminal" '--model \x1b[31mred\xff: neither a preset' --model "$(printf '\033[31mred\377')"
refused_alone "a flag that several begin with" "--st: ambiguous; could be --steps, --step" $nano --st 3
refused_alone "an empty file name" '--log "": must not be empty; give FILE' $nano --log ""
refused_alone "an empty choice of kernels" "--kernel ,: a choice is empty" $nano --kernel ,
refused_alone "terabytes of rows" "--batch 268435455: with --seq 1 and --accumulate 1 a rank's rows need more than" --model 1b --data LICENSE --batch 268435455 --seq 1
ddp=build/fp32/tiny-megatron
refused_alone "a mesh of more ranks than an int holds" "the mesh --tp 65536 --dp 65537 needs 4295032832 ranks; there are 65536" --show mesh --world 65536 --tp 65536 --dp 65537
ddp=build/fp32/tiny-ddp
