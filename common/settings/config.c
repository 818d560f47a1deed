#include "settings/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/error.h"
#include "settings/model_json.h"
#include "settings/presets.h"

#define AT(member) offsetof(Config, member)

enum { INTS_MAX = 2147483647 };

/* clang-format off */
static const Option common_options[] = {
    {"model", OPTION_TEXT, AT(model), "demo", .help = "nano, demo, 124m, 350m, 1b, nano-moe, demo-moe, moe-1b, bench, or a folder with config.json and model.safetensors", .operand = "NAME|DIR"},
    {"data", OPTION_TEXT, AT(data), TEXT_ROOT, .help = "a text file, a file of tokens (llm.c's layouts), or a folder of one kind", .operand = "FILE|DIR"},
    {"batch", OPTION_INT, AT(batch), NULL, 1, INTS_MAX, .help = "sequences in a step, over all ranks (the preset's)"},
    {"accumulate", OPTION_INT, AT(accumulate), "1", 1, INTS_MAX, .help = "micro-steps in a step"},
    {"seq", OPTION_INT, AT(seq), NULL, 1, INTS_MAX, .help = "tokens in a sequence (the preset's)"},
    {"steps", OPTION_INT, AT(steps), "50", 1, INTS_MAX, .help = "optimizer steps"},
    {"seed", OPTION_INT, AT(seed), "1337", 0, INTS_MAX, .help = "of the weights and of the order of the data"},
    {"recompute", OPTION_SWITCH, AT(recompute), "0", 0, 1, .help = "keep only the input of each layer, and compute the rest again in the backward pass"},
    {"memory-cap", OPTION_NUMBER, AT(memory_cap), "0", 0, 1e6, .help = "GiB that a rank may hold; 0: all there is"},
    {"ignore", OPTION_NUMBER, AT(ignore), "0", 0, 1, .help = "leave out this fraction of the labels, unevenly over the sequences"},

    {"window", OPTION_INT, AT(window), "0", 0, INTS_MAX, .help = "a row sees at most N keys, the nearest ones; 0: all before it"},
    {"prefix", OPTION_INT, AT(prefix), "0", 0, INTS_MAX, .help = "the first N rows of a sequence see each other and have no label (prefix-LM)"},
    {"pack", OPTION_SWITCH, AT(pack), "0", 0, 1, .help = "a row sees its own document only; a file begins one, and --document"},
    {"document", OPTION_INT, AT(document), "-1", -1, INTS_MAX, .help = "the token that begins a document; -1: as usual for the kind of file"},

    {"optimizer", OPTION_CHOICE, AT(optimizer), "adamw", .choices = "adamw|sgd", .help = "update rule"},
    {"lr", OPTION_NUMBER, AT(lr), NULL, 0, 1e30, .help = "peak learning rate (the preset's)"},
    {"warmup", OPTION_INT, AT(warmup), "10", 0, INTS_MAX, .help = "steps of linear rise; a cosine to a tenth follows"},
    {"weight-decay", OPTION_NUMBER, AT(weight_decay), "0.1", 0, 1e6, .help = "decoupled, matrices only"},
    {"clip", OPTION_NUMBER, AT(clip), "1", 0, 1e30, .help = "largest norm of the whole gradient; 0: no clipping"},

    {"device", OPTION_CHOICE, AT(device), "auto", .choices = "auto|cpu|cuda", .help = "where the kernels run"},
    {"kernel", OPTION_TEXT, AT(kernel), "", .help = "choose variants: linear=naive,attention=naive", .operand = "ENTRY=VARIANT,..."},
    {"autotune", OPTION_TEXT, AT(autotune), "", .help = "choose kernels by measuring them; FILE keeps the choices for the next run", .operand = "FILE"},
    {"timeout", OPTION_NUMBER, AT(timeout), "60", 0, 1e9, .help = "seconds that all ranks wait, or one is stopped, before the run ends; 0: for ever"},
    {"peak", OPTION_NUMBER, AT(peak), "0", 0, 1e9, .help = "TFLOP/s of one rank's device, for the mfu (GPUs: by name)"},

    {"verify", OPTION_OPTIONAL_INT, AT(verify), "0", 1, INTS_MAX, .given = "3", .help = "compare the first K steps (3) with a single device"},
    {"ledger", OPTION_SWITCH, AT(ledger), "0", 0, 1, .help = "print bytes sent and held beside the formulas"},
    {"log", OPTION_TEXT, AT(log), "", .help = "write a JSON line per step; the first holds the configuration", .operand = "FILE"},
    {"trace", OPTION_TEXT, AT(trace), "", .help = "write a timeline of all ranks, for Perfetto", .operand = "FILE"},
    {"dump", OPTION_TEXT, AT(dump), "", .help = "write the first step's gradients and the final weights (safetensors)", .operand = "FILE"},
    {"save-routes", OPTION_TEXT, AT(save_routes), "", .help = "with experts, on one rank: write which experts each row goes to", .operand = "FILE"},
    {"routes", OPTION_TEXT, AT(routes), "", .help = "with experts: rows go where the file of --save-routes says", .operand = "FILE"},
    {"sample", OPTION_INT, AT(sample), "0", 0, INTS_MAX, .help = "after training, let the model write N tokens"},
    {"prompt", OPTION_TEXT, AT(prompt), NULL, .help = "what --sample starts from (a line break)"},
    {"show", OPTION_CHOICE, AT(show), "", .choices = "mesh|shards|memory|plan", .help = "draw it and stop"},
    {"world", OPTION_INT, AT(world), NULL, 1, 1000000, .help = "for --show: as if there were N ranks"},
    {"step", OPTION_SWITCH, AT(step), "0", 0, 1, .help = "stop after each phase until Enter is pressed"},
    {"bug", OPTION_TEXT, AT(bug), "", .help = "switch on a known bug (builds with BUGS=1); list: name them", .operand = "NAME"},
};
/* clang-format on */

OptionTable config_options(Config *config)
{
    return (OptionTable){"flags of every trainer", common_options, sizeof common_options / sizeof common_options[0],
                         config};
}

/* Finds the model, and fills in the sequence, batch and learning rate that were not given. */
static const char *choose_model(Config *c)
{
    const Preset *preset = preset_find(c->model);
    if (preset) {
        c->architecture = preset->model;
    } else {
        struct stat info;
        if (stat(c->model, &info) != 0 || !S_ISDIR(info.st_mode))
            return complain("--model %s: neither a preset (%s) nor a folder", c->model, preset_names());
        const char *complaint = model_config_read(&c->architecture, c->model);
        if (complaint) return complaint;
        c->pretrained = true;
    }
    if (!c->seq) c->seq = preset ? preset->seq : 128;
    if (!c->batch) c->batch = preset ? preset->batch : 24;
    if (c->lr < 0) c->lr = preset ? preset->lr : 1e-4;
    c->architecture.max_seq = (int)c->seq;
    return NULL;
}

/* Chooses the kernels. --device auto takes the GPU if there is one, else the CPU. */
static const char *choose_backend(Config *c, int local_rank)
{
    const char *no_gpu = strcmp(c->device, "cpu") == 0 ? "--device cpu" : kernels_cuda(&c->kernels, local_rank);
    if (!no_gpu) return NULL;
    if (strcmp(c->device, "cuda") == 0) return no_gpu;
    c->kernels = kernels_cpu();
    if (c->kernels.backend) return NULL;
    return complain("--device %s: %s computes on a GPU only, and there is none for this build", c->device,
                    PRECISION_NAME);
}

static const char *choose_variants(Config *c)
{
    if (c->kernels.fit) c->note = c->kernels.fit(&c->kernels, c->architecture.head_dim);
    char list[256];
    if (snprintf(list, sizeof list, "%s", c->kernel) >= (int)sizeof list)
        return complain("--kernel %s: must be shorter than %zu characters", c->kernel, sizeof list);
    char *rest = *list ? list : NULL, *choice;
    while ((choice = strsep(&rest, ","))) {
        if (!*choice) return complain("--kernel %s: a choice is empty; give ENTRY=VARIANT,...", c->kernel);
        for (const char *before = list; before < choice; before += strlen(before) + 1)
            if (strcspn(before, "=") == strcspn(choice, "=") && strncmp(before, choice, strcspn(choice, "=")) == 0)
                return complain("--kernel %s: chooses twice for %.*s", c->kernel, (int)strcspn(choice, "="), choice);
        const char *complaint = kernels_choose(&c->kernels, choice);
        if (complaint) return complaint;
    }
    return NULL;
}

/* Refuses a batch whose rows do not fit into this host's memory, however the model is split: each rank has six numbers
 * for each row of a step, in the host's memory and in the backend's, and three buffers of whole rows for a
 * micro-step. --show allocates nothing. */
static const char *check_rows(const Config *c, int data_ranks)
{
    bool cpu = strcmp(c->kernels.backend, "cpu") == 0;
    double rows = (double)c->batch * (double)c->seq / data_ranks, gib = 1073741824;
    double least = 6 * sizeof(int) * rows;
    if (cpu) least = 2 * least + 3 * sizeof(real) * c->architecture.width * rows / (double)c->accumulate;
    double there = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (*c->show || least <= there) return NULL;
    return complain("--batch %ld: with --seq %ld and --accumulate %ld a rank's rows need more than %.0f GiB; this host "
                    "has %.0f GiB",
                    c->batch, c->seq, c->accumulate, floor(least / gib), there / gib);
}

const char *config_finish(Config *c, int data_ranks, int local_rank)
{
    const char *complaint = choose_model(c);
    if (!complaint) complaint = choose_backend(c, local_rank);
    if (!complaint) complaint = choose_variants(c);
    if (complaint) return complaint;
    if (c->batch % (data_ranks * c->accumulate))
        return complain("--batch %ld: must be a multiple of data ranks x --accumulate = %d x %ld", c->batch, data_ranks,
                        c->accumulate);
    if (c->batch > INTS_MAX / 8 / c->seq)
        return complain("--batch %ld: times --seq %ld must be at most %d", c->batch, c->seq, INTS_MAX / 8);
    if (c->prefix >= c->seq) return complain("--prefix %ld: must be less than --seq %ld", c->prefix, c->seq);
    const char *routes = *c->routes ? "routes" : "save-routes", *path = *c->routes ? c->routes : c->save_routes;
    if (*path && c->verify) return complain("--%s %s: not with --verify, whose twin follows the run", routes, path);
    if (c->prompt && !c->sample) return complain("--prompt %s: goes with --sample", c->prompt);
    if (!c->prompt) c->prompt = "\n";
    if (c->document >= 0 && !c->pack) return complain("--document %ld: goes with --pack", c->document);
    if (c->document >= c->architecture.vocab)
        return complain("--document %ld: must be a token of the model, 0 to %d", c->document,
                        c->architecture.vocab - 1);
    if (c->warmup > c->steps) c->warmup = c->steps;
    return check_rows(c, data_ranks);
}

const char *config_folder(const Config *c)
{
    return c->pretrained ? c->model : NULL;
}

DataOrder config_data_order(const Config *c)
{
    return (DataOrder){.seed = (uint64_t)c->seed,
                       .batch = (int)c->batch,
                       .seq = (int)c->seq,
                       .ignore = c->ignore,
                       .window = (int)c->window,
                       .prefix = (int)c->prefix,
                       .pack = (int)c->pack,
                       .document = (int)c->document};
}

OptimizerConfig config_optimizer(const Config *c)
{
    return (OptimizerConfig){.kind = strcmp(c->optimizer, "sgd") == 0 ? OPTIMIZER_SGD : OPTIMIZER_ADAMW,
                             .lr = c->lr,
                             .warmup = c->warmup,
                             .steps = c->steps,
                             .weight_decay = c->weight_decay,
                             .clip = c->clip,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8};
}
