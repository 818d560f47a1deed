#include "settings/model_json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "settings/presets.h"

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
