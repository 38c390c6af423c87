// Errors and events of the fake plugin.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_objects.h"

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t decided = PTHREAD_COND_INITIALIZER;

// ---- Errors ---------------------------------------------------------------------------------------------------------

typedef struct {
  PJRT_Error base;  // first: frameworks look for the table there
  PJRT_Error_Code code;
  char function[80];
  char message[320];
} FakeError;

static const char PAYLOAD_KEY[] = "fake.function";

static const FakeError* look(const PJRT_Error* error) { return (const FakeError*)error; }

static void destroy(PJRT_Error* error) { free(error); }

static void message(const PJRT_Error* error, const char** words, size_t* size) {
  *words = look(error)->message;
  *size = strlen(*words);
}

static PJRT_Error_Code get_code(const PJRT_Error* error) { return look(error)->code; }

static void for_each_payload(const PJRT_Error* error, PJRT_Error_PayloadVisitor visitor, void* user_arg) {
  const char* function = look(error)->function;
  if (*function) visitor(PAYLOAD_KEY, sizeof(PAYLOAD_KEY) - 1, function, strlen(function), user_arg);
}

static const PJRT_Error_FunctionTable ERROR_TABLE = {
    .struct_size = PJRT_Error_FunctionTable_STRUCT_SIZE,
    .instance_size = sizeof(FakeError),
    .destroy = destroy,
    .message = message,
    .get_code = get_code,
    .for_each_payload = for_each_payload,
};

PJRT_Error* fake_error(PJRT_Error_Code code, const char* function, const char* format, ...) {
  FakeError* error = calloc(1, sizeof(*error));
  error->base.vtable = &ERROR_TABLE;
  error->code = code;
  if (function) snprintf(error->function, sizeof(error->function), "%s", function);
  va_list words;
  va_start(words, format);
  vsnprintf(error->message, sizeof(error->message), format, words);
  va_end(words);
  return &error->base;
}

PJRT_Error* fake_PJRT_Error_Destroy(PJRT_Error_Destroy_Args* args) {
  free(args->error);
  return NULL;
}

PJRT_Error* fake_PJRT_Error_Message(PJRT_Error_Message_Args* args) {
  message(args->error, &args->message, &args->message_size);
  return NULL;
}

PJRT_Error* fake_PJRT_Error_GetCode(PJRT_Error_GetCode_Args* args) {
  args->code = look(args->error)->code;
  return NULL;
}

PJRT_Error* fake_PJRT_Error_ForEachPayload(PJRT_Error_ForEachPayload_Args* args) {
  for_each_payload(args->error, args->visitor, args->user_arg);
  return NULL;
}

// ---- Events ---------------------------------------------------------------------------------------------------------

PJRT_Event* fake_event(void) {
  PJRT_Event* event = calloc(1, sizeof(*event));
  event->references = 1;
  return event;
}

PJRT_Event* fake_ready_event(void) {
  PJRT_Event* event = fake_event();
  event->decided = true;
  return event;
}

PJRT_Event* fake_event_share(PJRT_Event* event) {
  pthread_mutex_lock(&fake_lock);
  ++event->references;
  pthread_mutex_unlock(&fake_lock);
  return event;
}

void fake_event_release(PJRT_Event* event) {
  pthread_mutex_lock(&fake_lock);
  bool last = --event->references == 0;
  pthread_mutex_unlock(&fake_lock);
  if (last) free(event);
}

static PJRT_Error* event_error(const PJRT_Event* event) {
  return event->code ? fake_error(event->code, NULL, "%s", event->message) : NULL;
}

void fake_event_set(PJRT_Event* event, PJRT_Error_Code code, const char* words) {
  pthread_mutex_lock(&fake_lock);
  if (event->decided) {
    pthread_mutex_unlock(&fake_lock);
    return;
  }
  event->decided = true;
  event->code = code;
  snprintf(event->message, sizeof(event->message), "%s", words ? words : "");
  FakeCallback* callbacks = event->callbacks;
  event->callbacks = NULL;
  ++event->references;  // a callback may give up the last one
  pthread_cond_broadcast(&decided);
  pthread_mutex_unlock(&fake_lock);
  while (callbacks) {
    FakeCallback* callback = callbacks;
    callbacks = callback->next;
    callback->call(event_error(event), callback->user_arg);
    free(callback);
  }
  fake_event_release(event);
}

bool fake_event_is_decided(PJRT_Event* event) {
  pthread_mutex_lock(&fake_lock);
  bool is = event->decided;
  pthread_mutex_unlock(&fake_lock);
  return is;
}

PJRT_Error_Code fake_event_wait(PJRT_Event* event, char* words, size_t room) {
  pthread_mutex_lock(&fake_lock);
  while (!event->decided) pthread_cond_wait(&decided, &fake_lock);
  if (event->code) snprintf(words, room, "%s", event->message);
  PJRT_Error_Code code = event->code;
  pthread_mutex_unlock(&fake_lock);
  return code;
}

typedef struct {
  void (*job)(void* arg);
  void* arg;
} Job;

static void* run_job(void* memory) {
  Job job = *(Job*)memory;
  free(memory);
  job.job(job.arg);
  return NULL;
}

void fake_run(void (*job)(void* arg), void* arg, bool at_once) {
  if (at_once) {
    job(arg);
    return;
  }
  Job* memory = malloc(sizeof(*memory));
  *memory = (Job){job, arg};
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_job, memory) != 0) abort();
  pthread_detach(thread);
}

PJRT_Error* fake_PJRT_Event_Destroy(PJRT_Event_Destroy_Args* args) {
  if (args->event) fake_event_release(args->event);
  return NULL;
}

PJRT_Error* fake_PJRT_Event_IsReady(PJRT_Event_IsReady_Args* args) {
  args->is_ready = fake_event_is_decided(args->event);
  return NULL;
}

PJRT_Error* fake_PJRT_Event_Error(PJRT_Event_Error_Args* args) {
  if (!fake_event_is_decided(args->event)) return fake_error(PJRT_Error_Code_FAILED_PRECONDITION, NULL, "the event is not decided");
  return event_error(args->event);
}

PJRT_Error* fake_PJRT_Event_Await(PJRT_Event_Await_Args* args) {
  char words[sizeof(args->event->message)];
  fake_event_wait(args->event, words, sizeof(words));
  return event_error(args->event);
}

PJRT_Error* fake_PJRT_Event_OnReady(PJRT_Event_OnReady_Args* args) {
  pthread_mutex_lock(&fake_lock);
  bool now = args->event->decided;
  if (!now) {
    FakeCallback* callback = malloc(sizeof(*callback));
    *callback = (FakeCallback){args->callback, args->user_arg, args->event->callbacks};
    args->event->callbacks = callback;
  }
  pthread_mutex_unlock(&fake_lock);
  if (now) args->callback(event_error(args->event), args->user_arg);
  return NULL;
}

PJRT_Error* fake_PJRT_Event_Create(PJRT_Event_Create_Args* args) {
  args->event = fake_event();
  return NULL;
}

PJRT_Error* fake_PJRT_Event_Set(PJRT_Event_Set_Args* args) {
  char words[256];
  snprintf(words, sizeof(words), "%.*s", (int)args->error_message_size, args->error_message ? args->error_message : "");
  fake_event_set(args->event, args->error_code, words);
  return NULL;
}
