// The fake plugin's rules of misbehaviour: read from the environment and a file, applied to calls. See fake_faults.h.
#include "fake_faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "pjrt_c_api.h"

enum { MOST_RULES = 64, MOST_ITEMS = 64, MOST_FIELDS = 4, TEXT = 256 };

// An output that a rule can set.
typedef struct {
  const char* function;
  const char* field;
  size_t offset;
  size_t size;
} Output;

#define OUTPUT(function, field) \
  {#function, #field, offsetof(function##_Args, field), sizeof(((function##_Args*)0)->field)}

static const Output OUTPUTS[] = {
    OUTPUT(PJRT_Plugin_Attributes, attributes),
    OUTPUT(PJRT_Plugin_Attributes, num_attributes),
    OUTPUT(PJRT_Client_Create, client),
    OUTPUT(PJRT_Client_PlatformName, platform_name),
    OUTPUT(PJRT_Client_PlatformName, platform_name_size),
    OUTPUT(PJRT_Client_Devices, devices),
    OUTPUT(PJRT_Client_Devices, num_devices),
    OUTPUT(PJRT_Client_AddressableDevices, addressable_devices),
    OUTPUT(PJRT_Client_AddressableDevices, num_addressable_devices),
    OUTPUT(PJRT_Client_AddressableMemories, addressable_memories),
    OUTPUT(PJRT_Client_AddressableMemories, num_addressable_memories),
    OUTPUT(PJRT_Client_BufferFromHostBuffer, buffer),
    OUTPUT(PJRT_Client_BufferFromHostBuffer, done_with_host_buffer),
    OUTPUT(PJRT_Client_Compile, executable),
    OUTPUT(PJRT_Device_DefaultMemory, memory),
    OUTPUT(PJRT_Memory_Kind, kind),
    OUTPUT(PJRT_Memory_Kind, kind_size),
    OUTPUT(PJRT_Executable_NumReplicas, num_replicas),
    OUTPUT(PJRT_Executable_NumPartitions, num_partitions),
    OUTPUT(PJRT_Executable_NumOutputs, num_outputs),
    OUTPUT(PJRT_Executable_OutputDimensions, num_outputs),
    OUTPUT(PJRT_Executable_OutputDimensions, dims),
    OUTPUT(PJRT_Executable_OutputDimensions, dim_sizes),
    OUTPUT(PJRT_Executable_OutputElementTypes, output_types),
    OUTPUT(PJRT_Executable_OutputElementTypes, num_output_types),
    OUTPUT(PJRT_Executable_Serialize, serialized_bytes),
    OUTPUT(PJRT_Executable_Serialize, serialized_bytes_size),
    OUTPUT(PJRT_Executable_DeserializeAndLoad, loaded_executable),
    OUTPUT(PJRT_LoadedExecutable_AddressableDevices, addressable_devices),
    OUTPUT(PJRT_LoadedExecutable_AddressableDevices, num_addressable_devices),
    OUTPUT(PJRT_Buffer_ElementType, type),
    OUTPUT(PJRT_Buffer_Dimensions, dims),
    OUTPUT(PJRT_Buffer_Dimensions, num_dims),
    OUTPUT(PJRT_Buffer_ToHostBuffer, dst_size),
    OUTPUT(PJRT_Buffer_ToHostBuffer, event),
    OUTPUT(PJRT_Buffer_OnDeviceSizeInBytes, on_device_size_in_bytes),
    OUTPUT(PJRT_Buffer_ReadyEvent, event),
};

typedef enum { LIVE, ABORT, SEGV, KILL, EXIT } End;

typedef struct {
  char function[80];
  int slow_ms;
  bool hang;
  End end;
  int exit_code;
  int code;
  char message[TEXT];
  struct {
    char name[48];
    uint64_t value;
  } fields[MOST_FIELDS];
  int num_fields;
  unsigned from;  // calls, counted from 1
  unsigned to;
  unsigned seen;
} Rule;

typedef struct {
  Rule rules[MOST_RULES];
  int count;
} Rules;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;
static FakeLooks looks = {.major = PJRT_API_MAJOR, .minor = PJRT_API_MINOR, .functions = 138, .devices = 2, .platform = "fake"};
static char items[MOST_ITEMS][TEXT];  // `key=value` items
static int num_items;
static char log_path[TEXT];
static Rules given;       // by the environment
static Rules controlled;  // by the file
static struct stat control_seen;  // of the file when it was read; no inode: not read
static int64_t negative[64];

static void copy_text(char* to, size_t room, const char* from) { snprintf(to, room, "%s", from); }

static _Noreturn void refuse(const char* item) {
  fprintf(stderr, "fake plugin: can't read the item '%s'; ffi/fake_faults.h says what there is\n", item);
  _exit(97);
}

static bool starts(const char* text, const char* with) { return strncmp(text, with, strlen(with)) == 0; }

static uint64_t field_value(const char* text) {
  if (strcmp(text, "null") == 0) return 0;
  if (strcmp(text, "negative") == 0) return (uint64_t)(uintptr_t)negative;
  if (strcmp(text, "huge") == 0) return UINT64_C(1) << 62;
  return text[0] == '-' ? (uint64_t)strtoll(text, NULL, 0) : strtoull(text, NULL, 0);
}

// Reads one action of a rule; whether it was one.
static bool read_action(Rule* rule, const char* action) {
  const char* value = strchr(action, '=');
  value = value ? value + 1 : "";
  if (starts(action, "slow=")) {
    rule->slow_ms = atoi(value);
  } else if (strcmp(action, "hang") == 0) {
    rule->hang = true;
  } else if (strcmp(action, "abort") == 0) {
    rule->end = ABORT;
  } else if (strcmp(action, "segv") == 0) {
    rule->end = SEGV;
  } else if (strcmp(action, "kill") == 0) {
    rule->end = KILL;
  } else if (starts(action, "exit=")) {
    rule->end = EXIT;
    rule->exit_code = atoi(value);
  } else if (starts(action, "error=")) {
    rule->code = atoi(value);
  } else if (starts(action, "msg=")) {
    copy_text(rule->message, sizeof(rule->message), value);
  } else if (*value && rule->num_fields < MOST_FIELDS) {
    size_t length = (size_t)(value - 1 - action);
    if (length >= sizeof(rule->fields[0].name)) return false;
    memcpy(rule->fields[rule->num_fields].name, action, length);
    rule->fields[rule->num_fields++].value = field_value(value);
  } else {
    return false;
  }
  return true;
}

// Takes `@N` or `@N+` off the end of an action.
static void read_calls(Rule* rule, char* action) {
  char* at = strrchr(action, '@');
  if (!at) return;
  *at = 0;
  char* rest;
  rule->from = (unsigned)strtoul(at + 1, &rest, 10);
  rule->to = *rest == '+' ? UINT32_MAX : rule->from;
}

static void read_rule(Rules* rules, char* item) {
  if (rules->count == MOST_RULES) refuse(item);
  char whole[TEXT];
  copy_text(whole, sizeof(whole), item);
  Rule* rule = &rules->rules[rules->count++];
  *rule = (Rule){.from = 1, .to = UINT32_MAX};
  copy_text(rule->message, sizeof(rule->message), "the fake plugin was told to fail");
  char* action = strchr(item, ':');
  *action++ = 0;
  copy_text(rule->function, sizeof(rule->function), item);
  while (action) {
    char* next = starts(action, "msg=") ? NULL : strchr(action, ':');
    if (next) *next++ = 0;
    read_calls(rule, action);
    if (!read_action(rule, action)) refuse(whole);
    action = next;
  }
}

// Reads an item that says how the plugin looks.
static void read_look(char* item) {
  if (num_items == MOST_ITEMS) refuse(item);
  copy_text(items[num_items++], TEXT, item);
  const char* value = strchr(item, '=') + 1;
  if (starts(item, "version=")) {
    if (sscanf(value, "%d.%d", &looks.major, &looks.minor) != 2) refuse(item);
  } else if (starts(item, "functions=")) {
    looks.functions = strtoull(value, NULL, 0);
  } else if (starts(item, "struct_size=")) {
    looks.struct_size = strtoull(value, NULL, 0);
  } else if (starts(item, "devices=")) {
    looks.devices = strtoull(value, NULL, 0);
  } else if (starts(item, "platform=")) {
    copy_text(looks.platform, sizeof(looks.platform), value);
  } else if (starts(item, "log=")) {
    copy_text(log_path, sizeof(log_path), value);
  } else if (!starts(item, "missing=") && !starts(item, "noext=")) {
    refuse(item);
  }
}

static void read_items(Rules* rules, char* text, bool with_looks) {
  char* rest;
  for (char* item = strtok_r(text, ";\n", &rest); item; item = strtok_r(NULL, ";\n", &rest)) {
    item += strspn(item, " \t\r");
    for (char* end = item + strlen(item); end > item && strchr(" \t\r", end[-1]);) *--end = 0;
    if (!*item) continue;
    char* colon = strchr(item, ':');
    char* equals = strchr(item, '=');
    if (colon && (!equals || colon < equals)) {
      read_rule(rules, item);
    } else if (equals && with_looks) {
      read_look(item);
    } else {
      refuse(item);
    }
  }
}

static void start(void) {
  if (started) return;
  started = true;
  for (size_t i = 0; i < sizeof(negative) / sizeof(*negative); ++i) negative[i] = -1;
  const char* text = getenv("FAKE_PLUGIN");
  if (!text) return;
  char* copy = strdup(text);
  read_items(&given, copy, true);
  free(copy);
}

static bool same_file(const struct stat* a, const struct stat* b) {
  return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
         a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

// Reads the control file if it is new or has changed.
static void read_control(void) {
  const char* path = getenv("FAKE_PLUGIN_CONTROL");
  struct stat now;
  if (!path || stat(path, &now) != 0) {
    controlled.count = 0;
    control_seen.st_ino = 0;
    return;
  }
  if (same_file(&now, &control_seen)) return;
  control_seen = now;
  char text[16384];
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? 0 : read(file, text, sizeof(text) - 1);
  if (file >= 0) close(file);
  text[length > 0 ? length : 0] = 0;
  controlled.count = 0;
  read_items(&controlled, text, false);
}

static void write_log(const char* function) {
  if (!log_path[0]) return;
  char line[96];
  int length = snprintf(line, sizeof(line), "%s\n", function);
  int file = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return;
  // A log that can't be written makes the test that reads it fail; the call goes on.
  if (write(file, line, (size_t)length) != length) fprintf(stderr, "fake plugin: %s: %s\n", log_path, strerror(errno));
  close(file);
}

static bool concerns(const Rule* rule, const char* function) {
  if (strcmp(rule->function, "*") == 0) return !starts(function, "PJRT_Error_") && starts(function, "PJRT_");
  return strcmp(rule->function, function) == 0;
}

static void sleep_ms(int ms) {
  struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) {
  }
}

static void end_process(const Rule* rule) {
  switch (rule->end) {
    case LIVE:
      return;
    case ABORT:
      abort();
    case SEGV:
      // A real fault: handlers that only know faults of their own let it through to the end of the process.
      *(volatile char*)(uintptr_t)8 = 0;
      break;
    case KILL:
      raise(SIGKILL);
      break;
    case EXIT:
      _exit(rule->exit_code);
  }
}

// Waits until no rule of the control file makes this function hang. A rule of the environment never goes away.
static void hang(const char* function) {
  for (bool still = true; still;) {
    sleep_ms(5);
    pthread_mutex_lock(&lock);
    read_control();
    still = false;
    const Rules* sets[] = {&given, &controlled};
    for (int set = 0; set < 2; ++set) {
      for (int i = 0; i < sets[set]->count; ++i) {
        still = still || (sets[set]->rules[i].hang && concerns(&sets[set]->rules[i], function));
      }
    }
    pthread_mutex_unlock(&lock);
  }
}

// Adds what the rules of one set say of this call to `sum`.
static void apply(Rules* rules, const char* function, Rule* sum) {
  for (int i = 0; i < rules->count; ++i) {
    Rule* rule = &rules->rules[i];
    if (!concerns(rule, function)) continue;
    ++rule->seen;
    if (rule->seen < rule->from || rule->seen > rule->to) continue;
    sum->slow_ms += rule->slow_ms;
    sum->hang = sum->hang || rule->hang;
    if (sum->end == LIVE) {
      sum->end = rule->end;
      sum->exit_code = rule->exit_code;
    }
    if (!sum->code) {
      sum->code = rule->code;
      copy_text(sum->message, sizeof(sum->message), rule->message);
    }
    sum->num_fields += rule->num_fields;
  }
}

const FakeLooks* fake_looks(void) {
  pthread_mutex_lock(&lock);
  start();
  pthread_mutex_unlock(&lock);
  return &looks;
}

bool fake_has_item(const char* key, const char* value) {
  char item[TEXT];
  snprintf(item, sizeof(item), "%s=%s", key, value);
  for (int i = 0; i < num_items; ++i) {
    if (strcmp(items[i], item) == 0) return true;
  }
  return false;
}

FakeFault fake_fault(const char* function) {
  Rule sum = {0};
  pthread_mutex_lock(&lock);
  start();
  read_control();
  write_log(function);
  apply(&given, function, &sum);
  apply(&controlled, function, &sum);
  pthread_mutex_unlock(&lock);
  if (sum.slow_ms) sleep_ms(sum.slow_ms);
  if (sum.hang) hang(function);
  end_process(&sum);
  FakeFault fault = {.code = sum.code, .changes_output = sum.num_fields > 0};
  copy_text(fault.message, sizeof(fault.message), sum.message);
  return fault;
}

static const Output* find_output(const char* function, const char* field) {
  for (size_t i = 0; i < sizeof(OUTPUTS) / sizeof(*OUTPUTS); ++i) {
    if (strcmp(OUTPUTS[i].function, function) == 0 && strcmp(OUTPUTS[i].field, field) == 0) return &OUTPUTS[i];
  }
  return NULL;
}

void fake_change_output(const char* function, void* args) {
  pthread_mutex_lock(&lock);
  const Rules* sets[] = {&given, &controlled};
  for (int set = 0; set < 2; ++set) {
    for (int i = 0; i < sets[set]->count; ++i) {
      const Rule* rule = &sets[set]->rules[i];
      // `seen` was counted when the call began.
      if (!concerns(rule, function) || rule->seen < rule->from || rule->seen > rule->to) continue;
      for (int f = 0; f < rule->num_fields; ++f) {
        const Output* output = find_output(function, rule->fields[f].name);
        if (!output) refuse(rule->fields[f].name);
        memcpy((char*)args + output->offset, &rule->fields[f].value, output->size);
      }
    }
  }
  pthread_mutex_unlock(&lock);
}
