/* JSON from a file, read strictly: what cJSON would pass over in silence is refused. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>

/* Parses text[length], which must be one JSON object and nothing else: no NUL byte, no text after the object, no key
 * twice in one object, no number that a double cannot hold. Returns NULL, with *json to be freed by the caller, or a
 * complaint that begins with `called`. */
const char *json_parse(cJSON **json, const char *text, size_t length, const char *called);
