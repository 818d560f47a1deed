#include "model_config.h"

#include <math.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"
#include "precision.h"

/* nano is for tests: small, yet with 8 heads, 4 kv heads and a head_dim that is not width / heads, and a batch that 1, 2,
 * 3, 4, 6, 8, 12, 16 ranks divide. demo is for two CPU cores. 124m has the matrix products of GPT-2's smallest, 350m those
 * of its second, 1b the shapes of Llama 3.2 1B. */
/* clang-format off */
static const Preset presets[] = {
    {
        .model = {.name = "nano", .layers = 2, .width = 16, .heads = 8, .kv_heads = 4, .head_dim = 4, .ff = 24,
                  .vocab = 256, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.1},
        .seq = 48, .batch = 48, .lr = 1e-2,
    },
    {
        .model = {.name = "demo", .layers = 4, .width = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .ff = 512,
                  .vocab = 256, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.05},
        .seq = 128, .batch = 24, .lr = 3e-3,
    },
    {
        .model = {.name = "124m", .layers = 12, .width = 768, .heads = 12, .kv_heads = 12, .head_dim = 64, .ff = 2048,
                  .vocab = 50304, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.02},
        .seq = 1024, .batch = 64, .lr = 6e-4,
    },
    {
        .model = {.name = "350m", .layers = 24, .width = 1024, .heads = 16, .kv_heads = 16, .head_dim = 64, .ff = 2816,
                  .vocab = 50304, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.02},
        .seq = 1024, .batch = 32, .lr = 3e-4,
    },
    {
        .model = {.name = "1b", .layers = 16, .width = 2048, .heads = 32, .kv_heads = 8, .head_dim = 64, .ff = 8192,
                  .vocab = 128256, .tied = true, .qk_norm = false, .theta = 5e5, .eps = 1e-5, .init_std = 0.02},
        .seq = 4096, .batch = 4, .lr = 3e-4,
    },
    { /* the shape at which CPU trainers are compared in docs/results.md */
        .model = {.name = "bench", .layers = 4, .width = 256, .heads = 4, .kv_heads = 4, .head_dim = 64, .ff = 680,
                  .vocab = 4096, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.02},
        .seq = 64, .batch = 4, .lr = 1e-3,
    },
};
/* clang-format on */
enum { PRESETS = sizeof presets / sizeof presets[0] };

const Preset *preset_find(const char *name)
{
    for (int p = 0; p < PRESETS; p++)
        if (strcmp(presets[p].model.name, name) == 0) return &presets[p];
    return NULL;
}

const char *preset_names(void)
{
    static char text[128];
    size_t n = 0;
    for (int p = 0; p < PRESETS; p++) {
        const char *parts[] = {p ? ", " : "", presets[p].model.name};
        for (int i = 0; i < 2; i++)
            for (const char *c = parts[i]; *c && n + 1 < sizeof text; c++) text[n++] = *c;
    }
    text[n] = '\0';
    return text;
}

/* --- config.json --- */

/* The whole of a regular file, to be freed; NULL if there is none. */
static char *read_text(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return NULL;
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *text = malloc((size_t)info.st_size + 1);
    if (!text) fatal("out of memory for %s", path);
    text[fread(text, 1, (size_t)info.st_size, f)] = '\0';
    fclose(f);
    return text;
}

static const cJSON *field(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

/* Sets *value to the number `key`, or leaves it where the object does not have it. A value that is no number, or not
 * whole where `whole` is asked for, is named in *bad. */
static void take(double *value, const cJSON *object, const char *key, bool whole, const char **bad)
{
    const cJSON *item = field(object, key);
    if (!item) return;
    double x = item->valuedouble;
    if (!cJSON_IsNumber(item) || !(x > -1e9 && x < 1e9) || (whole && x != (double)(long)x))
        *bad = key;
    else
        *value = x;
}

static int take_int(const cJSON *json, const char *key, int otherwise, const char **bad)
{
    double value = otherwise;
    take(&value, json, key, true, bad);
    return (int)value;
}

/* Returns the name of a field that is malformed, or NULL. */
static const char *take_constants(ModelConfig *c, const cJSON *json, bool qwen3)
{
    const char *bad = NULL;
    c->layers = take_int(json, "num_hidden_layers", 0, &bad);
    c->width = take_int(json, "hidden_size", 0, &bad);
    c->heads = take_int(json, "num_attention_heads", 0, &bad);
    c->kv_heads = take_int(json, "num_key_value_heads", c->heads, &bad);
    c->head_dim = take_int(json, "head_dim", qwen3 ? 128 : c->heads > 0 ? c->width / c->heads : 0, &bad);
    c->ff = take_int(json, "intermediate_size", 0, &bad);
    c->vocab = take_int(json, "vocab_size", 0, &bad);
    const cJSON *tied = field(json, "tie_word_embeddings");
    if (tied && !cJSON_IsBool(tied)) bad = "tie_word_embeddings";
    c->tied = cJSON_IsTrue(tied);
    c->qk_norm = qwen3;
    c->theta = 1e4;
    c->eps = 1e-6;
    c->init_std = 0.02;
    take(&c->theta, json, "rope_theta", false, &bad);
    const cJSON *rope = field(json, "rope_parameters");
    if (rope && !cJSON_IsObject(rope)) bad = "rope_parameters";
    take(&c->theta, rope, "rope_theta", false, &bad);
    take(&c->eps, json, "rms_norm_eps", false, &bad);
    take(&c->init_std, json, "initializer_range", false, &bad);
    return bad;
}

/* Is the field absent, or this string? */
static bool is_or_absent(const cJSON *object, const char *key, const char *value)
{
    const cJSON *item = field(object, key);
    return !item || (cJSON_IsString(item) && strcmp(item->valuestring, value) == 0);
}

/* The name of a field that asks for what this suite does not have, or NULL. Better refused than trained wrongly. */
static const char *unsupported(const cJSON *json)
{
    const cJSON *rope = field(json, "rope_parameters"), *rotary = field(json, "partial_rotary_factor");
    if (!is_or_absent(json, "hidden_act", "silu")) return "hidden_act";
    if (field(json, "rope_scaling")) return "rope_scaling";
    if (!is_or_absent(rope, "rope_type", "default")) return "rope_type";
    if (rotary && !(cJSON_IsNumber(rotary) && rotary->valuedouble == 1)) return "partial_rotary_factor";
    static const char *const off[] = {"attention_bias", "mlp_bias", "use_sliding_window"};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        if (field(json, off[i]) && !cJSON_IsFalse(field(json, off[i]))) return off[i];
    const cJSON *dropout = field(json, "attention_dropout");
    if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0)) return "attention_dropout";
    if (field(json, "quantization_config")) return "quantization_config";
    return NULL;
}

/* `given`: what --model says. */
static const char *check(const ModelConfig *c, const char *given)
{
    const struct {
        const char *name;
        int value, most;
    } bounds[] = {{"layers", c->layers, 1000},     {"width", c->width, 1 << 17},   {"heads", c->heads, 4096},
                  {"kv_heads", c->kv_heads, 4096}, {"head_dim", c->head_dim, 256}, {"ff", c->ff, 1 << 20},
                  {"vocab", c->vocab, 1 << 22}};
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (bounds[i].value < 1 || bounds[i].value > bounds[i].most)
            return complain("--model %s: %s is %d; must be from 1 to %d", given, bounds[i].name, bounds[i].value,
                            bounds[i].most);
    if (c->heads % c->kv_heads)
        return complain("--model %s: %d heads are not a multiple of %d kv heads", given, c->heads, c->kv_heads);
    if (c->head_dim % 2) return complain("--model %s: head_dim is %d; must be even", given, c->head_dim);
    if (!(c->theta > 0) || !isfinite(c->theta) || !(c->eps >= 0) || !isfinite(c->eps))
        return complain("--model %s: rope_theta is %g, rms_norm_eps %g; must be above 0, and at least 0", given,
                        c->theta, c->eps);
    return NULL;
}

const char *model_config_read(ModelConfig *config, const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    char *text = read_text(path);
    if (!text) return complain("--model %s: no such preset (%s) and no config.json there", dir, preset_names());
    cJSON *json = cJSON_Parse(text);
    free(text);
    if (!json) return complain("--model %s: %s is not JSON", dir, path);

    const cJSON *type = cJSON_GetObjectItemCaseSensitive(json, "model_type");
    const char *type_name = cJSON_IsString(type) ? type->valuestring : "missing", *complaint = NULL, *name;
    bool qwen3 = strcmp(type_name, "qwen3") == 0;
    *config = (ModelConfig){0};
    snprintf(config->name, sizeof config->name, "%s", type_name);
    if (!qwen3 && strcmp(type_name, "llama") != 0)
        complaint = complain("--model %s: model_type %s; llama and qwen3 are known", dir, type_name);
    else if ((name = unsupported(json)))
        complaint = complain("--model %s: config.json asks for a %s that is not supported", dir, name);
    else if ((name = take_constants(config, json, qwen3)))
        complaint = complain("--model %s: %s in config.json is malformed", dir, name);
    cJSON_Delete(json);
    return complaint ? complaint : check(config, dir);
}

size_t model_matmul_weights(const ModelConfig *c)
{
    size_t C = (size_t)c->width, D = (size_t)c->head_dim, H = (size_t)c->heads, K = (size_t)c->kv_heads;
    size_t layer = (H + 2 * K) * D * C + C * H * D + 3 * C * (size_t)c->ff;
    return (size_t)c->layers * layer + (size_t)c->vocab * C;
}

double model_flops(const ModelConfig *c, int64_t rows, int64_t area)
{
    double attention = 12.0 * c->layers * c->heads * c->head_dim * (double)area;
    return 6.0 * (double)model_matmul_weights(c) * (double)rows + attention;
}

size_t model_activation_bytes(const ModelConfig *c, size_t rows, bool recompute, size_t stream_parts)
{
    size_t C = (size_t)c->width, D = (size_t)c->head_dim, H = (size_t)c->heads, K = (size_t)c->kv_heads;
    size_t F = (size_t)c->ff, V = (size_t)c->vocab, L = (size_t)c->layers, stream = rows / stream_parts;
    size_t qkv = (H + 2 * K) * D, raw = c->qk_norm ? (H + K) * D : 0, raw_rstd = c->qk_norm ? H + K : 0;
    /* kept for the backward pass: x1 of each layer; n1, x2, n2 and factors; qkv, raw, attended, gate_up, hidden */
    size_t input = stream * C * sizeof(real);
    size_t layer = stream * (3 * C * sizeof(real) + 2 * sizeof(acc)) +
                   rows * ((qkv + raw + H * D + 3 * F) * sizeof(real) + (H + raw_rstd) * sizeof(acc));
    /* outside the layers: embedded, delta, logits and the loss; the head's sum and norm, and rstd */
    size_t head = rows * ((2 * C + V) * sizeof(real) + sizeof(acc)) + stream * (2 * C * sizeof(real) + sizeof(acc));
    /* used by one layer's backward pass after the other: dx; dn, dqkv, dattended, dgate_up, dhidden, dot */
    size_t backward = stream * C * sizeof(real) + rows * ((C + qkv + H * D + 3 * F) * sizeof(real) + H * sizeof(acc));
    return L * input + (recompute ? 1 : L) * layer + head + backward + (size_t)c->max_seq * D * sizeof(acc) +
           sizeof(double);
}

ModelConfig model_config_slice(const ModelConfig *whole, int tp)
{
    ModelConfig c = *whole;
    if (tp <= 1) return c;
    c.heads /= tp;
    c.kv_heads = c.kv_heads < tp ? 1 : c.kv_heads / tp;
    c.ff /= tp;
    c.vocab = (c.vocab + tp - 1) / tp;
    return c;
}

const char *model_config_check_slice(const ModelConfig *c, int tp)
{
    if (c->heads % tp) return complain("--tp %d: must divide the model's heads, %d", tp, c->heads);
    if (c->kv_heads % tp && tp % c->kv_heads)
        return complain("--tp %d: must divide the model's kv heads, %d, or be a multiple of them", tp, c->kv_heads);
    if (c->ff % tp) return complain("--tp %d: must divide the feed-forward width, %d", tp, c->ff);
    return NULL;
}
