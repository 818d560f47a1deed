/* A model's constants from its config.json. */
#pragma once

#include "model/model_config.h"

/* Reads DIR/config.json as `transformers` writes it for Llama and Qwen3. Every key of the file is known: used, ignored because it
 * does not change what is computed, or accepted at one value only. Returns NULL or a complaint, also about constants that
 * make no model. */
const char *model_config_read(ModelConfig *config, const char *dir);
