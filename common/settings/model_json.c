#include "settings/model_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json.h"
#include "kernels/kernels.h"
#include "settings/presets.h"

enum { LARGEST_FILE = 1 << 20 };
/* The objects of config.json in which a key may stand: the outer one, and rope_parameters (rope_scaling in older
 * files). */
enum { OUTER = 1, ROPE = 2 };
enum { LLAMA = 1, QWEN3 = 2, MIXTRAL = 4, QWEN3_MOE = 8, MOE = MIXTRAL | QWEN3_MOE, ALL = 15 };

#define AT(member) offsetof(ModelConfig, member)

/* clang-format off */
/* Keys that set a constant. Some may be null: the constant is then computed from others, and is 0 until then. */
static const struct {
    const char *name;
    int where;
    enum { INT, NUMBER, FLAG } type;
    size_t offset;
    double least, most;
    int models;      /* those that have the key */
    int may_be_null; /* those in which null is allowed */
} used[] = {
    {"num_hidden_layers", OUTER, INT, AT(layers), 1, 1000, ALL, 0},
    {"hidden_size", OUTER, INT, AT(width), 1, 1 << 17, ALL, 0},
    {"num_attention_heads", OUTER, INT, AT(heads), 1, 4096, ALL, 0},
    {"num_key_value_heads", OUTER, INT, AT(kv_heads), 1, 4096, ALL, ALL},
    {"head_dim", OUTER, INT, AT(head_dim), 1, 256, ALL, LLAMA | MOE},
    {"intermediate_size", OUTER, INT, AT(ff), 1, 1 << 20, ALL, 0},
    {"vocab_size", OUTER, INT, AT(vocab), 1, 1 << 22, ALL, 0},
    {"tie_word_embeddings", OUTER, FLAG, AT(tied), 0, 0, ALL, 0},
    {"rope_theta", OUTER | ROPE, NUMBER, AT(theta), 1e-9, 1e30, ALL, 0},
    {"rms_norm_eps", OUTER, NUMBER, AT(eps), 0, 1, ALL, 0},
    {"initializer_range", OUTER, NUMBER, AT(init_std), 0, 1, ALL, 0},
    {"num_local_experts", OUTER, INT, AT(moe.experts), 1, EXPERTS_MAX, MOE, 0},
    {"num_experts", OUTER, INT, AT(moe.experts), 1, EXPERTS_MAX, QWEN3_MOE, 0},
    {"num_experts_per_tok", OUTER, INT, AT(moe.top_k), 1, EXPERTS_MAX, MOE, 0},
    {"moe_intermediate_size", OUTER, INT, AT(moe.ff), 1, 1 << 20, QWEN3_MOE, 0},
    {"norm_topk_prob", OUTER, FLAG, AT(moe.renormalize), 0, 0, QWEN3_MOE, 0},
    {"router_aux_loss_coef", OUTER, NUMBER, AT(moe.aux_coef), 0, 1e6, MOE, 0},
};

/* Keys that may have these values only. This suite cannot compute a model with any other. */
static const struct {
    const char *name;
    int where, models;
    const char *value, *or; /* allowed values, as JSON; `or` may be NULL */
} fixed[] = {
    {"router_jitter_noise", OUTER, MIXTRAL, "0", "null"},
    {"decoder_sparse_step", OUTER, QWEN3_MOE, "1", NULL},
    {"mlp_only_layers", OUTER, QWEN3_MOE, "[]", "null"},
    {"hidden_act", OUTER, ALL, "\"silu\"", NULL},
    {"attention_bias", OUTER, ALL, "false", NULL},
    {"mlp_bias", OUTER, ALL, "false", NULL},
    {"attention_dropout", OUTER, ALL, "0", "null"},
    {"is_causal", OUTER, ALL, "true", NULL},
    {"is_decoder", OUTER, ALL, "false", NULL},
    {"is_encoder_decoder", OUTER, ALL, "false", NULL},
    {"add_cross_attention", OUTER, ALL, "false", NULL},
    {"cross_attention_hidden_size", OUTER, ALL, "null", NULL},
    {"tie_encoder_decoder", OUTER, ALL, "false", NULL},
    {"pruned_heads", OUTER, ALL, "{}", "null"},
    {"use_sliding_window", OUTER, ALL, "false", NULL},
    {"sliding_window", OUTER, LLAMA | MIXTRAL, "null", NULL}, /* Qwen3 has a number here beside use_sliding_window false */
    {"pretraining_tp", OUTER, ALL, "1", "null"},
    {"quantization_config", OUTER, ALL, "null", NULL},
    {"rope_interleaved", OUTER, ALL, "false", NULL},
    {"partial_rotary_factor", OUTER | ROPE, ALL, "1", "null"},
    {"rope_type", ROPE, ALL, "\"default\"", NULL},
    {"type", ROPE, ALL, "\"default\"", NULL}, /* its older name */
};

/* Keys that do not change what the model computes, and keys that this file reads elsewhere. */
static const char *const ignored[] = {
    "model_type", "layer_types", "rope_parameters", "rope_scaling", /* read elsewhere */
    "sliding_window", "max_window_layers", "max_position_embeddings", "max_sequence_length",
    /* where the file comes from, and how the weights were stored */
    "architectures", "transformers_version", "transformers.js_config", "_name_or_path", "name_or_path", "_commit_hash",
    "torch_dtype", "dtype", "is_llama_config",
    /* tokens and texts */
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id", "tokenizer_class", "prefix",
    /* how transformers computes and what it returns */
    "use_cache", "output_router_logits", "output_attentions", "output_hidden_states", "return_dict", "tie_last_hidden_states", "torchscript",
    "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "gradient_checkpointing",
    /* for classifiers */
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    /* for generating text */
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens",
};
/* clang-format on */

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* A reading of one config.json. */
typedef struct {
    ModelConfig *config;
    int model;          /* LLAMA, ... */
    const char *called; /* complaints begin with this text */
} Reading;

/* Sets the constant of used[row]. Returns NULL or a complaint, like all functions below. */
static const char *use(const Reading *r, size_t row, const cJSON *item)
{
    char *target = (char *)r->config + used[row].offset;
    double x = cJSON_IsNumber(item) ? item->valuedouble : used[row].least - 1;
    bool is_null = cJSON_IsNull(item) && used[row].may_be_null & r->model;
    switch (used[row].type) {
    case INT:
        if (!is_null && (!(x >= used[row].least && x <= used[row].most) || x != (int)x)) break;
        if (used[row].offset == AT(moe.experts) && r->config->moe.experts && r->config->moe.experts != x)
            return complain("%s: the number of experts is given twice, as %d and %g", r->called, r->config->moe.experts,
                            x);
        *(int *)target = is_null ? 0 : (int)x;
        return NULL;
    case NUMBER:
        if (!(x >= used[row].least && x <= used[row].most)) break;
        if (strcmp(used[row].name, "rope_theta") == 0 && r->config->theta != 0 && r->config->theta != x)
            return complain("%s: rope_theta is given twice, as %.17g and %.17g", r->called, r->config->theta, x);
        *(double *)target = x;
        return NULL;
    case FLAG:
        if (!cJSON_IsBool(item)) break;
        *(bool *)target = cJSON_IsTrue(item);
        return NULL;
    }
    char rule[80] = "true or false", *text = cJSON_PrintUnformatted(item);
    if (used[row].type != FLAG)
        snprintf(rule, sizeof rule, "a %snumber from %.10g to %.10g", used[row].type == INT ? "whole " : "",
                 used[row].least, used[row].most);
    const char *complaint = complain("%s: %s is %s; must be %s", r->called, used[row].name, text, rule);
    free(text);
    return complaint;
}

static const char *check_fixed(const Reading *r, size_t row, const cJSON *item)
{
    const char *value = fixed[row].value, * or = fixed[row].or, *complaint = NULL;
    char *text = cJSON_PrintUnformatted(item);
    if (strcmp(text, value) != 0 && !(or &&strcmp(text, or) == 0))
        complaint = complain("%s: %s is %s; only %s is supported", r->called, fixed[row].name, text, value);
    free(text);
    return complaint;
}

/* Reads all keys of an object. `where` says which object it is: OUTER or ROPE. */
static const char *read_object(const Reading *r, const cJSON *object, int where)
{
    for (const cJSON *item = object->child; item; item = item->next) {
        const char *complaint = NULL;
        bool known = false;
        for (size_t i = 0; i < COUNT(used) && !complaint; i++)
            if (used[i].where & where && used[i].models & r->model && strcmp(used[i].name, item->string) == 0)
                known = true, complaint = use(r, i, item);
        for (size_t i = 0; i < COUNT(fixed) && !complaint; i++)
            if (fixed[i].where & where && fixed[i].models & r->model && strcmp(fixed[i].name, item->string) == 0)
                known = true, complaint = check_fixed(r, i, item);
        for (size_t i = 0; i < COUNT(ignored) && !known && where == OUTER; i++)
            known = strcmp(ignored[i], item->string) == 0;
        if (complaint) return complaint;
        if (!known)
            return complain("%s: the key %s%s is not known, and may change the model", r->called,
                            where == ROPE ? "of RoPE, " : "", item->string);
    }
    return NULL;
}

static const char *read_rope(const Reading *r, const cJSON *json, const char *key)
{
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!rope || cJSON_IsNull(rope)) return NULL;
    if (!cJSON_IsObject(rope)) return complain("%s: %s must be an object or null", r->called, key);
    return read_object(r, rope, ROPE);
}

static const char *check_layer_types(const Reading *r, const cJSON *json)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(json, "layer_types"), *type;
    if (!types || cJSON_IsNull(types)) return NULL;
    bool good = cJSON_IsArray(types) && cJSON_GetArraySize(types) == r->config->layers;
    for (type = types->child; type && good; type = type->next)
        good = cJSON_IsString(type) && strcmp(type->valuestring, "full_attention") == 0;
    return good ? NULL : complain("%s: layer_types must be full_attention for each layer", r->called);
}

/* Mixtral's intermediate_size is that of an expert; Qwen3-MoE's is that of dense layers, of which there are none. */
static const char *finish_experts(const Reading *r)
{
    ModelConfig *c = r->config;
    if (r->model == MIXTRAL) c->moe.ff = c->ff;
    if (r->model & MOE) c->ff = 0;
    if (c->moe.top_k > c->moe.experts)
        return complain("%s: num_experts_per_tok %d is more than the %d experts", r->called, c->moe.top_k,
                        c->moe.experts);
    return NULL;
}

/* Computes the constants that follow from others, and checks that the constants fit together. */
static const char *finish(const Reading *r)
{
    ModelConfig *c = r->config;
    for (size_t i = 0; i < COUNT(used); i++)
        if (used[i].type == INT && used[i].models & r->model && !used[i].may_be_null &&
            *(int *)((char *)c + used[i].offset) == 0)
            return complain("%s: %s is missing", r->called, used[i].name);
    if (c->theta == 0) c->theta = 1e4;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->head_dim && c->width % c->heads)
        return complain("%s: hidden_size %d is not a multiple of num_attention_heads %d", r->called, c->width,
                        c->heads);
    if (!c->head_dim) c->head_dim = c->width / c->heads;
    if (c->heads % c->kv_heads)
        return complain("%s: %d heads are not a multiple of %d kv heads", r->called, c->heads, c->kv_heads);
    if (c->head_dim % 2 || c->head_dim > 256)
        return complain("%s: head_dim is %d; must be even, and at most 256", r->called, c->head_dim);
    return finish_experts(r);
}

/* A key that is missing gets the default of `transformers`. Sizes are the exception: they must be given. */
static const char *read_model(ModelConfig *config, const cJSON *json, const char *called)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(json, "model_type");
    const char *name = cJSON_IsString(type) ? type->valuestring : "missing";
    int model = strcmp(name, "llama") == 0       ? LLAMA
                : strcmp(name, "qwen3") == 0     ? QWEN3
                : strcmp(name, "mixtral") == 0   ? MIXTRAL
                : strcmp(name, "qwen3_moe") == 0 ? QWEN3_MOE
                                                 : 0;
    if (!model) return complain("%s: model_type %s; llama, qwen3, mixtral and qwen3_moe are known", called, name);
    bool qwen3 = model == QWEN3;
    *config = (ModelConfig){.kv_heads = qwen3 ? 32 : 0,
                            .head_dim = qwen3 ? 128 : 0,
                            .qk_norm = qwen3 || model == QWEN3_MOE,
                            .eps = model == MIXTRAL ? 1e-5 : 1e-6,
                            .init_std = 0.02,
                            .moe = {.renormalize = model == MIXTRAL, .aux_coef = 0.001}};
    if (!(model & MOE)) config->moe = (MoeConfig){0};
    snprintf(config->name, sizeof config->name, "%s", name);
    Reading r = {config, model, called};
    const char *complaint = read_object(&r, json, OUTER);
    if (!complaint) complaint = read_rope(&r, json, "rope_parameters");
    if (!complaint) complaint = read_rope(&r, json, "rope_scaling");
    if (!complaint) complaint = check_layer_types(&r, json);
    return complaint ? complaint : finish(&r);
}

const char *model_config_read(ModelConfig *config, const char *dir)
{
    char path[4096], called[4200];
    struct stat info;
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path || stat(path, &info) != 0 ||
        !S_ISREG(info.st_mode))
        return complain("--model %s: no such preset (%s) and no config.json there", dir, preset_names());
    snprintf(called, sizeof called, "--model %.300s: config.json", dir);
    if (info.st_size > LARGEST_FILE)
        return complain("%s: %lld bytes; must be at most %d", called, (long long)info.st_size, LARGEST_FILE);
    FILE *f = fopen(path, "rb");
    if (!f) return complain("%s: cannot be read", called);
    char *text = malloc((size_t)info.st_size + 1);
    if (!text) fatal("out of memory for %s", path);
    size_t length = fread(text, 1, (size_t)info.st_size, f);
    fclose(f);
    cJSON *json;
    const char *complaint = json_parse(&json, text, length, called);
    if (!complaint) complaint = read_model(config, json, called);
    cJSON_Delete(json);
    free(text);
    return complaint;
}
