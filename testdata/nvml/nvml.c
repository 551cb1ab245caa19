// SPDX-License-Identifier: Apache-2.0

// A stand-in for NVIDIA's libnvidia-ml.so.1: it answers what a text file says
// (README.md has the format), with the symbols, structs and codes of nvml.h 13.
//
//	gcc -shared -fPIC -O1 -Wall -Wextra -o libnvidia-ml.so.1 nvml.c
//
// -DWITHOUT_SYMBOL leaves one symbol out, as a library older than it does.
// It is not safe for calls from several threads while nvmlInit runs.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// ---- nvml.h: structs. A versioned one holds its size in its version. ----

typedef unsigned int uint;
typedef unsigned long long ullong;
typedef int Return;
typedef void *Device, *GpuInstance, *ComputeInstance;

typedef struct { // nvmlPciInfo_t; before _v3 it ended, with 16 spare bytes, before bus_id
	char bus_id_legacy[16];
	uint domain, bus, device, device_id, subsystem_id;
	char bus_id[32];
} PciInfo;
typedef struct { ullong total, free, used; } Memory;
typedef struct { uint version; ullong total, reserved, free, used; } Memory_v2;
typedef struct {
	uint sms, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices;
	ullong memory_mb;
} Attributes;
typedef struct {
	uint id, p2p, slices, instances, sms, copy, decoder, encoder, jpeg, ofa;
	ullong memory_mb;
} GpuInstanceProfile;
typedef struct {
	uint version, id, p2p, slices, instances, sms, copy, decoder, encoder, jpeg, ofa;
	ullong memory_mb;
	char name[96];
} GpuInstanceProfile_v2;
typedef struct {
	uint version, id, slices, instances, sms, copy, decoder, encoder, jpeg, ofa;
	ullong memory_mb;
	char name[96];
	uint capabilities;
} GpuInstanceProfile_v3;
typedef struct { uint start, size; } Placement;
typedef struct { Device device; uint id, profile_id; Placement placement; } GpuInstanceInfo;
typedef struct {
	uint id, slices, instances, sms, copy, decoder, encoder, jpeg, ofa;
} ComputeInstanceProfile;
typedef struct {
	uint version, id, slices, instances, sms, copy, decoder, encoder, jpeg, ofa;
	char name[96];
} ComputeInstanceProfile_v2;
typedef struct {
	uint version, id, slices, instances, sms, copy, decoder, encoder, jpeg, ofa;
	char name[96];
	uint capabilities;
} ComputeInstanceProfile_v3;
typedef struct {
	Device device;
	GpuInstance gpu_instance;
	uint id, profile_id;
	Placement placement;
} ComputeInstanceInfo;
typedef struct {
	unsigned char cluster[16];
	uint status, clique;
	unsigned char state;
} Fabric;
typedef struct {
	uint version;
	unsigned char cluster[16];
	uint status, clique;
	unsigned char state;
	uint health_mask;
} Fabric_v2;
typedef struct {
	uint version;
	unsigned char cluster[16];
	uint status, clique;
	unsigned char state;
	uint health_mask;
	unsigned char health_summary;
} Fabric_v3;
typedef struct { uint version, value; } AddressingMode;

#define VERSION(type, n) ((uint)(sizeof(type) | (n) << 24))

_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(Memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(Memory_v2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(Attributes) == 40, "nvmlDeviceAttributes_t");
_Static_assert(sizeof(GpuInstanceProfile) == 48, "nvmlGpuInstanceProfileInfo_t");
_Static_assert(sizeof(GpuInstanceProfile_v2) == 152, "nvmlGpuInstanceProfileInfo_v2_t");
_Static_assert(sizeof(GpuInstanceProfile_v3) == 152, "nvmlGpuInstanceProfileInfo_v3_t");
_Static_assert(sizeof(GpuInstanceInfo) == 24, "nvmlGpuInstanceInfo_t");
_Static_assert(sizeof(ComputeInstanceProfile) == 36, "nvmlComputeInstanceProfileInfo_t");
_Static_assert(sizeof(ComputeInstanceProfile_v2) == 136, "nvmlComputeInstanceProfileInfo_v2_t");
_Static_assert(sizeof(ComputeInstanceProfile_v3) == 140, "nvmlComputeInstanceProfileInfo_v3_t");
_Static_assert(sizeof(ComputeInstanceInfo) == 32, "nvmlComputeInstanceInfo_t");
_Static_assert(sizeof(Fabric) == 28, "nvmlGpuFabricInfo_t");
_Static_assert(sizeof(Fabric_v2) == 36, "nvmlGpuFabricInfo_v2_t");
_Static_assert(sizeof(Fabric_v3) == 40, "nvmlGpuFabricInfo_v3_t");
_Static_assert(sizeof(AddressingMode) == 8, "nvmlDeviceAddressingMode_v1_t");

// ---- nvml.h: numbers and their names ----

typedef struct { const char *name; long long value; const char *text; } Word;

enum {
	SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999,
};

static const Word codes[] = {
	{"SUCCESS", 0, "Success"},
	{"UNINITIALIZED", 1, "Uninitialized"},
	{"INVALID_ARGUMENT", 2, "Invalid Argument"},
	{"NOT_SUPPORTED", 3, "Not Supported"},
	{"NO_PERMISSION", 4, "Insufficient Permissions"},
	{"ALREADY_INITIALIZED", 5, "Already Initialized"},
	{"NOT_FOUND", 6, "Not Found"},
	{"INSUFFICIENT_SIZE", 7, "Insufficient Size"},
	{"INSUFFICIENT_POWER", 8, "Insufficient External Power"},
	{"DRIVER_NOT_LOADED", 9, "Driver Not Loaded"},
	{"TIMEOUT", 10, "Timeout"},
	{"IRQ_ISSUE", 11, "Interrupt Request Issue"},
	{"LIBRARY_NOT_FOUND", 12, "NVML Shared Library Not Found"},
	{"FUNCTION_NOT_FOUND", 13, "Function Not Found"},
	{"CORRUPTED_INFOROM", 14, "Corrupted infoROM"},
	{"GPU_IS_LOST", 15, "GPU is lost"},
	{"RESET_REQUIRED", 16, "GPU requires reset"},
	{"OPERATING_SYSTEM", 17, "The operating system has blocked the request"},
	{"LIB_RM_VERSION_MISMATCH", 18, "Driver/library version mismatch"},
	{"IN_USE", 19, "In use by another client"},
	{"MEMORY", 20, "Insufficient Memory"},
	{"NO_DATA", 21, "No data"},
	{"VGPU_ECC_NOT_SUPPORTED", 22, "The requested vgpu operation is not available on target device, because ECC is enabled"},
	{"INSUFFICIENT_RESOURCES", 23, "Insufficient Resources"},
	{"FREQ_NOT_SUPPORTED", 24, "Frequency Not Supported"},
	{"ARGUMENT_VERSION_MISMATCH", 25, "Argument version mismatch"},
	{"DEPRECATED", 26, "Deprecated"},
	{"NOT_READY", 27, "Not Ready"},
	{"GPU_NOT_FOUND", 28, "GPU not found"},
	{"INVALID_STATE", 29, "Invalid State"},
	{"RESET_TYPE_NOT_SUPPORTED", 30, "Reset Type Not Supported"},
	{"UNKNOWN", 999, "Unknown Error"},
	{0},
};
static const Word architectures[] = {
	{"kepler", 2, 0}, {"maxwell", 3, 0}, {"pascal", 4, 0}, {"volta", 5, 0}, {"turing", 6, 0}, {"ampere", 7, 0},
	{"ada", 8, 0}, {"hopper", 9, 0}, {"blackwell", 10, 0}, {"rubin", 13, 0}, {"unknown", 0xffffffff, 0}, {0},
};
static const Word brands[] = {
	{"unknown", 0, 0}, {"quadro", 1, 0}, {"tesla", 2, 0}, {"nvs", 3, 0}, {"grid", 4, 0}, {"geforce", 5, 0},
	{"titan", 6, 0}, {"vapps", 7, 0}, {"vpc", 8, 0}, {"vcs", 9, 0}, {"vws", 10, 0}, {"cloud-gaming", 11, 0},
	{"quadro-rtx", 12, 0}, {"nvidia-rtx", 13, 0}, {"nvidia", 14, 0}, {"geforce-rtx", 15, 0}, {"titan-rtx", 16, 0}, {0},
};
static const Word nvlink_versions[] = {
	{"1.0", 1, 0}, {"2.0", 2, 0}, {"2.2", 3, 0}, {"3.0", 4, 0}, {"3.1", 5, 0}, {"4.0", 6, 0}, {"5.0", 7, 0}, {"6.0", 8, 0}, {0},
};

// GPU instance profiles by NVML_GPU_INSTANCE_PROFILE_*. The id is not the
// index: callers must compare ids. Eighths is the share of the GPU's memory.
static const struct { uint id, slices, eighths; const char *suffix; int common; } gi_profiles[] = {
	{19, 1, 1, "", 1}, {14, 2, 2, "", 1}, {9, 3, 4, "", 1}, {5, 4, 4, "", 1}, {0, 7, 8, "", 1}, {1, 8, 8, "", 0},
	{2, 6, 6, "", 0}, {20, 1, 1, "+me", 1}, {21, 2, 2, "+me", 0}, {15, 1, 2, "", 1}, {47, 1, 1, "+gfx", 0},
	{35, 2, 2, "+gfx", 0}, {32, 4, 4, "+gfx", 0}, {67, 1, 1, "-me", 0}, {66, 2, 2, "-me", 0},
	{65, 1, 1, "+me.all", 0}, {64, 2, 2, "+me.all", 0}, {33, 3, 4, "+gfx", 0},
};
#define GI_PROFILES (sizeof gi_profiles / sizeof *gi_profiles)

// Slices of compute instance profiles by NVML_COMPUTE_INSTANCE_PROFILE_*;
// their id is the index.
static const uint ci_slices[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
#define CI_PROFILES (sizeof ci_slices / sizeof *ci_slices)

// ---- What the text file says ----

enum { MAX_GPUS = 64, MAX_MIGS = 512, MAX_FAULTS = 64, ABSENT = -1, MAX_LINKS = 18 };

struct gpu {
	long long index, dev, sub, bytes, mig, mig_pending, arch, brand, minor;
	long long fabric_state, fabric_status, clique, addressing, links, link_version, link_remote, virtualization;
	long long handle; // result of asking for the handle
	int has_bus, has_name, has_cc, lost;
	uint bus[3], cc[2]; // domain, bus, device; major, minor
	unsigned char cluster[16];
	char name[160], uuid[96], serial[32];
};
struct mig {
	long long gpu, index, gi, ci, gi_profile, ci_profile, engine;
	long long slices, compute_slices, sms, memory_mb, copy, decoder, encoder, jpeg, ofa;
};
struct fault {
	enum kind { ERROR, HANG, CRASH, SLEEP, EXIT, SAY, GARBAGE, FLOOD } kind;
	char function[64], text[160];
	long long gpu, value;
};

static struct {
	int refs;
	char driver[96], nvml[96], log[PATH_MAX];
	long long cuda, count, init;
	int gpus, migs, faults, p2p_all;
	struct gpu gpu[MAX_GPUS];
	struct mig mig[MAX_MIGS];
	struct fault fault[MAX_FAULTS];
	unsigned char p2p[MAX_GPUS][MAX_GPUS];
} S;

// ---- Reading it ----

enum type { NUMBER, TEXT, BUS, PAIR, UUID, MIB };
struct key { const char *name; size_t at; enum type type; size_t size; const Word *words; };

#define NUM(key, field, words) {key, offsetof(struct gpu, field), NUMBER, 0, words}
#define TXT(key, field) {key, offsetof(struct gpu, field), TEXT, sizeof(((struct gpu *)0)->field), NULL}
static const struct key gpu_keys[] = {
	{"bus", offsetof(struct gpu, bus), BUS, 0, NULL},
	{"cc", offsetof(struct gpu, cc), PAIR, 0, NULL},
	{"cluster", offsetof(struct gpu, cluster), UUID, 0, NULL},
	{"mem", offsetof(struct gpu, bytes), MIB, 0, NULL},
	NUM("membytes", bytes, NULL),
	TXT("name", name), TXT("uuid", uuid), TXT("serial", serial),
	NUM("dev", dev, NULL), NUM("sub", sub, NULL), NUM("minor", minor, NULL),
	NUM("mig", mig, NULL), NUM("migpending", mig_pending, NULL),
	NUM("arch", arch, architectures), NUM("brand", brand, brands),
	NUM("fstate", fabric_state, NULL), NUM("fstatus", fabric_status, codes), NUM("clique", clique, NULL),
	NUM("addressing", addressing, NULL), NUM("virt", virtualization, NULL),
	NUM("nvlinks", links, NULL), NUM("nvlinkver", link_version, nvlink_versions), NUM("nvlinkto", link_remote, NULL),
	{0},
};
#define MIG(key, field) {key, offsetof(struct mig, field), NUMBER, 0, NULL}
static const struct key mig_keys[] = {
	MIG("gpu", gpu), MIG("index", index), MIG("gi", gi), MIG("ci", ci), MIG("gprof", gi_profile), MIG("cprof", ci_profile),
	MIG("geng", engine), MIG("slices", slices), MIG("cslices", compute_slices), MIG("sm", sms), MIG("mem", memory_mb),
	MIG("ce", copy), MIG("dec", decoder), MIG("enc", encoder), MIG("jpg", jpeg), MIG("ofa", ofa), {0},
};

// Each of these returns NULL, or what is wrong.

static const char *number(const char *s, const Word *words, long long *out)
{
	for (; words && words->name; words++)
		if (strcmp(words->name, s) == 0) {
			*out = words->value;
			return NULL;
		}
	char *end;
	errno = 0;
	*out = strtoll(s, &end, 0);
	return *s == '\0' || *end != '\0' || errno ? "not a number or a known name" : NULL;
}

static const char *text(const char *s, char *out, size_t size)
{
	if (strlen(s) >= size)
		return "too long";
	do
		*out++ = *s == '~' ? ' ' : *s;
	while (*s++);
	return NULL;
}

static int pci_address(const char *s, uint at[3])
{
	uint function;
	int n = 0;
	if (sscanf(s, "%x:%x:%x.%x%n", &at[0], &at[1], &at[2], &function, &n) == 4 && s[n] == '\0')
		return 1;
	at[0] = 0;
	return sscanf(s, "%x:%x.%x%n", &at[1], &at[2], &function, &n) == 3 && s[n] == '\0';
}

static const char *uuid(const char *s, unsigned char out[16])
{
	int n = 0;
	for (; *s; s++) {
		if (*s == '-')
			continue;
		int end = 0;
		if (n == 16 || sscanf(s, "%2hhx%n", &out[n], &end) != 1 || end != 2)
			return "not a UUID";
		n++, s++;
	}
	return n == 16 ? NULL : "not a UUID";
}

static const char *value(char *object, const struct key *k, const char *s)
{
	void *field = object + k->at;
	uint *pair = field;
	const char *wrong;
	int n = 0;
	switch (k->type) {
	case NUMBER: return number(s, k->words, field);
	case TEXT:   return text(s, field, k->size);
	case BUS:    return pci_address(s, field) ? NULL : "not a PCI address";
	case PAIR:   return sscanf(s, "%u.%u%n", &pair[0], &pair[1], &n) == 2 && s[n] == '\0' ? NULL : "not major.minor";
	case UUID:   return uuid(s, field);
	case MIB:
		wrong = number(s, NULL, field);
		*(long long *)field <<= 20;
		return wrong;
	}
	return "no such type";
}

// words reads key=value words into object; seen has a bit for each key.
static const char *words(char **rest, void *object, const struct key *keys, ullong *seen)
{
	for (char *w; (w = strtok_r(NULL, " \t", rest)) != NULL;) {
		char *eq = strchr(w, '=');
		if (eq == NULL)
			return "want key=value";
		*eq = '\0';
		const struct key *k = keys;
		while (k->name && strcmp(k->name, w) != 0)
			k++;
		if (k->name == NULL)
			return "no such key";
		const char *wrong = value(object, k, eq + 1);
		if (wrong)
			return wrong;
		*seen |= 1ULL << (k - keys);
	}
	return NULL;
}

static int saw(ullong seen, const struct key *keys, const char *name)
{
	const struct key *k = keys;
	while (strcmp(k->name, name) != 0)
		k++;
	return seen >> (k - keys) & 1;
}

static long long architecture(const uint cc[2])
{
	switch (cc[0]) {
	case 3: return 2;
	case 5: return 3;
	case 6: return 4;
	case 7: return cc[1] < 5 ? 5 : 6;
	case 8: return cc[1] < 9 ? 7 : 8;
	case 9: return 9;
	case 10: case 11: case 12: return 10;
	case 13: return 13;
	}
	return 0xffffffff;
}

static const char *read_gpu(char **rest)
{
	if (S.gpus == MAX_GPUS)
		return "too many GPUs";
	struct gpu *g = &S.gpu[S.gpus];
	ullong seen = 0;
	*g = (struct gpu){
		.index = S.gpus, .bytes = ABSENT, .mig = ABSENT, .mig_pending = ABSENT, .arch = ABSENT, .brand = 14,
		.minor = S.gpus, .fabric_state = ABSENT, .addressing = ABSENT, .links = ABSENT, .link_version = 6, .link_remote = 2,
	};
	snprintf(g->uuid, sizeof g->uuid, "GPU-5ad00000-0000-4000-8000-%012x", S.gpus);
	const char *wrong = words(rest, g, gpu_keys, &seen);
	if (wrong)
		return wrong;
	g->has_bus = saw(seen, gpu_keys, "bus");
	g->has_name = saw(seen, gpu_keys, "name");
	g->has_cc = saw(seen, gpu_keys, "cc");
	if (g->has_cc && g->arch == ABSENT)
		g->arch = architecture(g->cc);
	if (g->mig_pending == ABSENT)
		g->mig_pending = g->mig;
	if (g->links > MAX_LINKS)
		return "at most 18 links";
	S.gpus++;
	return NULL;
}

static const char *read_mig(char **rest)
{
	if (S.migs == MAX_MIGS)
		return "too many MIG devices";
	struct mig *m = &S.mig[S.migs];
	ullong seen = 0;
	*m = (struct mig){.gpu = ABSENT, .index = ABSENT};
	const char *wrong = words(rest, m, mig_keys, &seen);
	if (wrong)
		return wrong;
	if (m->gpu < 0 || m->gpu >= S.gpus)
		return "no such gpu above";
	if (m->gi_profile < 0 || m->gi_profile >= (long long)GI_PROFILES || m->ci_profile < 0 || m->ci_profile >= (long long)CI_PROFILES)
		return "no such profile";
	if (m->index == ABSENT) {
		m->index = 0;
		for (int i = 0; i < S.migs; i++)
			if (S.mig[i].gpu == m->gpu && S.mig[i].index >= m->index)
				m->index = S.mig[i].index + 1;
	}
	S.migs++;
	return NULL;
}

static const char *read_index(const char *s, int *out)
{
	long long n;
	if (s == NULL || number(s, NULL, &n) != NULL || n < 0 || n >= S.gpus)
		return "no such gpu above";
	*out = (int)n;
	return NULL;
}

// Every API function's name lies in a section of its own, which the linker bounds.
extern const char *const __start_nvml_names[] __attribute__((visibility("hidden")));
extern const char *const __stop_nvml_names[] __attribute__((visibility("hidden")));

// same says whether a fault on the function named in the text hits the called
// one: the name itself, or the name without its _v2, _v3.
static int same(const char *named, const char *called)
{
	size_t n = strlen(named);
	if (strncmp(named, called, n) != 0)
		return 0;
	return called[n] == '\0' || (strncmp(called + n, "_v", 2) == 0 && strlen(called + n) == 3);
}

static const char *read_fault(enum kind kind, int with_value, const Word *names, char **rest)
{
	if (S.faults == MAX_FAULTS)
		return "too many faults";
	struct fault *f = &S.fault[S.faults];
	*f = (struct fault){.kind = kind, .gpu = ABSENT};
	char *w = strtok_r(NULL, " \t", rest);
	if (w == NULL || text(w, f->function, sizeof f->function) != NULL)
		return "want a function";
	const char *const *api = __start_nvml_names;
	while (api < __stop_nvml_names && !same(f->function, *api))
		api++;
	if (api == __stop_nvml_names)
		return "no such function";
	w = strtok_r(NULL, " \t", rest);
	if (w && strncmp(w, "gpu=", 4) == 0) {
		if (number(w + 4, NULL, &f->gpu) != NULL || f->gpu < 0)
			return "want gpu=number";
		w = strtok_r(NULL, " \t", rest);
	}
	if (kind == SAY && (w == NULL || text(w, f->text, sizeof f->text) != NULL))
		return "want a text at the end";
	if (kind != SAY && with_value && (w == NULL || number(w, names, &f->value) != NULL))
		return "want a number or code at the end";
	if ((!with_value && w != NULL) || strtok_r(NULL, " \t", rest) != NULL)
		return "too many words";
	S.faults++;
	return NULL;
}

static const struct { const char *name; enum kind kind; int with_value; const Word *words; } fault_kinds[] = {
	{"error", ERROR, 1, codes}, {"hang", HANG, 0, NULL}, {"crash", CRASH, 0, NULL}, {"sleep", SLEEP, 1, NULL},
	{"exit", EXIT, 1, NULL}, {"say", SAY, 1, NULL}, {"garbage", GARBAGE, 0, NULL}, {"flood", FLOOD, 0, NULL},
};

static const char *read_line(char *line, const char *folder)
{
	char *rest, *what = strtok_r(line, " \t", &rest), *one, *two = NULL;
	if (what == NULL)
		return NULL;
	if (strcmp(what, "gpu") == 0)
		return read_gpu(&rest);
	if (strcmp(what, "mig") == 0)
		return read_mig(&rest);
	for (size_t i = 0; i < sizeof fault_kinds / sizeof *fault_kinds; i++)
		if (strcmp(what, fault_kinds[i].name) == 0)
			return read_fault(fault_kinds[i].kind, fault_kinds[i].with_value, fault_kinds[i].words, &rest);

	one = strtok_r(NULL, " \t", &rest);
	if (one == NULL)
		return "want a value";
	two = strtok_r(NULL, " \t", &rest);
	if (strtok_r(NULL, " \t", &rest) != NULL)
		return "too many words";

	int a, b;
	const char *wrong;
	if (strcmp(what, "handle") == 0)
		return (wrong = read_index(one, &a)) ? wrong : two ? number(two, codes, &S.gpu[a].handle) : "want a code";
	if (strcmp(what, "p2p") == 0 && two != NULL) {
		if ((wrong = read_index(one, &a)) || (wrong = read_index(two, &b)))
			return wrong;
		S.p2p[a][b] = S.p2p[b][a] = 1;
		return NULL;
	}
	if (two != NULL)
		return "too many words";
	if (strcmp(what, "p2p") == 0) {
		S.p2p_all = strcmp(one, "all") == 0;
		return S.p2p_all ? NULL : "want two GPUs, or all";
	}
	if (strcmp(what, "lost") == 0) {
		wrong = read_index(one, &a);
		if (!wrong)
			S.gpu[a].lost = 1;
		return wrong;
	}
	if (strcmp(what, "driver") == 0)
		return text(one, S.driver, sizeof S.driver);
	if (strcmp(what, "nvml") == 0)
		return text(one, S.nvml, sizeof S.nvml);
	if (strcmp(what, "cuda") == 0)
		return number(one, NULL, &S.cuda);
	if (strcmp(what, "count") == 0)
		return number(one, NULL, &S.count);
	if (strcmp(what, "init") == 0)
		return number(one, codes, &S.init);
	if (strcmp(what, "log") == 0) {
		int n = snprintf(S.log, sizeof S.log, "%s%s", *one == '/' ? "" : folder, one);
		return n >= (int)sizeof S.log ? "too long" : NULL;
	}
	return "no such word";
}

// read_text fills S from nvml.txt beside this library, and says on stderr what is
// wrong with it.
static int read_text(void)
{
	char file[PATH_MAX], folder[PATH_MAX] = "", *line = NULL;
	size_t size = 0;
	Dl_info self;

	memset(&S, 0, sizeof S);
	S.count = ABSENT;

	const char *named = dladdr(&S, &self) ? self.dli_fname : NULL;
	if (named == NULL || strlen(named) + sizeof "nvml.txt" > sizeof file) {
		fprintf(stderr, "nvml stand-in: no text file\n");
		return 0;
	}
	const char *slash = strrchr(named, '/');
	if (slash)
		memcpy(folder, named, slash + 1 - named);
	snprintf(file, sizeof file, "%.*s%s", (int)(sizeof file - 16), folder, "nvml.txt");

	FILE *f = fopen(file, "re");
	if (f == NULL) {
		fprintf(stderr, "nvml stand-in: %s: %s\n", file, strerror(errno));
		return 0;
	}
	const char *wrong = NULL;
	for (int n = 1; wrong == NULL && getline(&line, &size, f) != -1; n++) {
		line[strcspn(line, "\r\n")] = '\0';
		for (char *p = line; *p; p++)
			if (*p == '#' && (p == line || p[-1] == ' ' || p[-1] == '\t')) {
				*p = '\0'; // a comment
				break;
			}
		char *copy = strdup(line);
		wrong = read_line(line, folder);
		if (wrong)
			fprintf(stderr, "nvml stand-in: %s:%d: %s: %s\n", file, n, copy, wrong);
		free(copy);
	}
	free(line);
	fclose(f);
	if (S.nvml[0] == '\0')
		snprintf(S.nvml, sizeof S.nvml, "12.%.90s", S.driver);
	return wrong == NULL;
}

// ---- What happens at every call ----

// A handle points into S.gpu or S.mig; a byte or two past the start of a MIG
// device is the handle of its GPU instance or compute instance.
enum { SYSTEM = 0, GPU = 1, MIG_DEVICE = 2, GI = 4, CI = 8 };

static void *handle_of(struct mig *m, int kind)
{
	return (char *)m + (kind == GI ? 1 : kind == CI ? 2 : 0);
}

static int resolve(void *handle, struct gpu **g, struct mig **m)
{
	size_t at = (char *)handle - (char *)S.mig;
	if (at < sizeof S.mig && at / sizeof *S.mig < (size_t)S.migs && at % sizeof *S.mig < 3) {
		*m = &S.mig[at / sizeof *S.mig];
		*g = &S.gpu[(*m)->gpu];
		return MIG_DEVICE << at % sizeof *S.mig;
	}
	at = (char *)handle - (char *)S.gpu;
	if (at < sizeof S.gpu && at / sizeof *S.gpu < (size_t)S.gpus && at % sizeof *S.gpu == 0) {
		*g = &S.gpu[at / sizeof *S.gpu];
		return GPU;
	}
	return -1;
}

static void write_log(const char *function, int gpu, const struct mig *m)
{
	char line[160];
	int n = snprintf(line, sizeof line, "%s", function);
	if (gpu >= 0)
		n += snprintf(line + n, sizeof line - n, " gpu=%d", gpu);
	if (m)
		n += snprintf(line + n, sizeof line - n, " gi=%lld ci=%lld", m->gi, m->ci);
	line[n++] = '\n';
	int fd = open(S.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd < 0 || write(fd, line, n) != n)
		fprintf(stderr, "nvml stand-in: %s: %s\n", S.log, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static _Noreturn void hang(void)
{
	for (int s = 1; s < NSIG; s++)
		if (s == SIGHUP || s == SIGINT || s == SIGQUIT || s == SIGPIPE || s == SIGTERM)
			signal(s, SIG_IGN);
	for (;;)
		pause();
}

static Return fault(const char *function, int gpu)
{
	static char junk[4096];
	int *volatile nowhere = NULL;
	for (int i = 0; i < S.faults; i++) {
		const struct fault *f = &S.fault[i];
		if (!same(f->function, function) || (f->gpu != ABSENT && f->gpu != gpu))
			continue;
		memset(junk, '{', sizeof junk);
		switch (f->kind) {
		case ERROR:
			return (Return)f->value;
		case HANG:
			hang();
		case CRASH:
			*nowhere = 1;
			break;
		case SLEEP:
			nanosleep(&(struct timespec){f->value / 1000, f->value % 1000 * 1000000}, NULL);
			break;
		case EXIT:
			_exit((int)f->value);
		case SAY:
			fprintf(stderr, "%s\n", f->text);
			break;
		case GARBAGE:
			if (write(1, "\xff{]garbage\n", 11) != 11)
				fprintf(stderr, "nvml stand-in: garbage: %s\n", strerror(errno));
			break;
		case FLOOD:
			signal(SIGPIPE, SIG_IGN);
			while (write(1, junk, sizeof junk) > 0)
				;
			hang();
		}
	}
	return SUCCESS;
}

// enter logs the call, finds the GPU and MIG device of its handle, lets faults
// happen, and returns what the call must return if that is not SUCCESS.
static Return enter(const char *function, int kinds, void *handle, int gpu, struct gpu **g, struct mig **m)
{
	if (S.refs == 0)
		return UNINITIALIZED;
	int kind = kinds == SYSTEM ? SYSTEM : resolve(handle, g, m);
	if (*g)
		gpu = (int)(*g)->index;
	if (S.log[0])
		write_log(function, gpu, *m);
	Return r = fault(function, gpu);
	if (r != SUCCESS)
		return r;
	if (kinds != SYSTEM && (kind < 0 || (kind & kinds) == 0))
		return INVALID_ARGUMENT;
	if (*g && (*g)->lost) {
		// What a lost GPU still answers lies in the library, not on the GPU.
		static const char *const still[] = {"Name", "UUID", "Index", "MinorNumber", "CudaComputeCapability", "Architecture"};
		for (size_t i = 0; i < sizeof still / sizeof *still; i++)
			if (strcmp(function + strlen("nvmlDeviceGet"), still[i]) == 0)
				return SUCCESS;
		return GPU_IS_LOST;
	}
	return SUCCESS;
}

// API starts an exported function, hidden with -DWITHOUT_name. (The macros
// below turn the 1 of a -D into "hidden" and anything else into "default".)
#define JUNK_1 0, "hidden",
#define SECOND(a, b, ...) b
#define VISIBILITY__(junk) SECOND(junk "default", "default", 0)
#define VISIBILITY_(one) VISIBILITY__(JUNK_##one)
#define VISIBILITY(macro) VISIBILITY_(macro)
#define API(name)                                                                                \
	static const char *const api_##name __attribute__((used, section("nvml_names"))) = #name;       \
	__attribute__((visibility(VISIBILITY(WITHOUT_##name)))) Return name

// CALL begins every function's body. g and m are the GPU and the MIG device.
#define CALL_AT(kinds, handle, index)                                                            \
	struct gpu *g = NULL;                                                                    \
	struct mig *m = NULL;                                                                    \
	Return entered = enter(__func__, kinds, handle, index, &g, &m);                          \
	if (entered != SUCCESS)                                                                  \
		return entered;
#define CALL(kinds, handle) CALL_AT(kinds, handle, -1)
#define NEED(pointer) if ((pointer) == NULL) return INVALID_ARGUMENT
#define KNOWN(field) if ((field) == ABSENT) return NOT_SUPPORTED
#define ANSWER(pointer, value) do { NEED(pointer); *(pointer) = (value); return SUCCESS; } while (0)

static Return answer_text(const char *s, char *out, uint length)
{
	NEED(out);
	if (strlen(s) >= length)
		return INSUFFICIENT_SIZE;
	strcpy(out, s);
	return SUCCESS;
}

// ---- Library and system ----

static Return init(const char *function)
{
	if (S.refs == 0 && !read_text())
		return UNKNOWN;
	if (S.log[0])
		write_log(function, -1, NULL);
	Return r = fault(function, -1);
	if (r == SUCCESS)
		r = (Return)S.init;
	if (r == SUCCESS)
		S.refs++;
	return r;
}

API(nvmlInit)(void) { return init(__func__); }
API(nvmlInit_v2)(void) { return init(__func__); }
API(nvmlInitWithFlags)(uint flags) { (void)flags; return init(__func__); }

API(nvmlShutdown)(void)
{
	CALL(SYSTEM, NULL);
	S.refs--;
	return SUCCESS;
}

const char *nvmlErrorString(Return r)
{
	for (const Word *w = codes; w->name; w++)
		if (w->value == r)
			return w->text;
	return "Unknown Error";
}

API(nvmlSystemGetDriverVersion)(char *out, uint length) { CALL(SYSTEM, NULL); return answer_text(S.driver, out, length); }
API(nvmlSystemGetNVMLVersion)(char *out, uint length) { CALL(SYSTEM, NULL); return answer_text(S.nvml, out, length); }
API(nvmlSystemGetCudaDriverVersion)(int *out) { CALL(SYSTEM, NULL); ANSWER(out, (int)S.cuda); }
API(nvmlSystemGetCudaDriverVersion_v2)(int *out) { CALL(SYSTEM, NULL); ANSWER(out, (int)S.cuda); }

// ---- Handles ----

static Return give(int index, Device *out)
{
	NEED(out);
	if (index < 0 || index >= S.gpus)
		return INVALID_ARGUMENT;
	*out = &S.gpu[index];
	return (Return)S.gpu[index].handle;
}

static int by_pci(const char *address)
{
	uint at[3];
	if (address && pci_address(address, at))
		for (int i = 0; i < S.gpus; i++)
			if (S.gpu[i].has_bus && memcmp(at, S.gpu[i].bus, sizeof at) == 0)
				return i;
	return -1;
}

static void mig_uuid(const struct mig *m, char out[96])
{
	snprintf(out, 96, "MIG-5ad00000-0000-4000-8000-%04llx%04llx%04llx", m->gpu, m->gi, m->ci);
}

API(nvmlDeviceGetCount)(uint *out) { CALL(SYSTEM, NULL); ANSWER(out, (uint)(S.count == ABSENT ? S.gpus : S.count)); }
API(nvmlDeviceGetCount_v2)(uint *out) { CALL(SYSTEM, NULL); ANSWER(out, (uint)(S.count == ABSENT ? S.gpus : S.count)); }
API(nvmlDeviceGetHandleByIndex)(uint index, Device *out) { CALL_AT(SYSTEM, NULL, index); return give(index, out); }
API(nvmlDeviceGetHandleByIndex_v2)(uint index, Device *out) { CALL_AT(SYSTEM, NULL, index); return give(index, out); }

API(nvmlDeviceGetHandleByPciBusId)(const char *address, Device *out)
{
	CALL_AT(SYSTEM, NULL, by_pci(address));
	return by_pci(address) < 0 ? NOT_FOUND : give(by_pci(address), out);
}

API(nvmlDeviceGetHandleByPciBusId_v2)(const char *address, Device *out)
{
	CALL_AT(SYSTEM, NULL, by_pci(address));
	return by_pci(address) < 0 ? NOT_FOUND : give(by_pci(address), out);
}

API(nvmlDeviceGetHandleByUUID)(const char *wanted, Device *out)
{
	char of_mig[96];
	int i = 0;
	while (wanted && i < S.gpus && strcmp(S.gpu[i].uuid, wanted) != 0)
		i++;
	CALL_AT(SYSTEM, NULL, i < S.gpus ? i : -1);
	NEED(wanted);
	NEED(out);
	if (i < S.gpus)
		return give(i, out);
	for (i = 0; i < S.migs; i++) {
		mig_uuid(&S.mig[i], of_mig);
		if (strcmp(of_mig, wanted) == 0)
			ANSWER(out, handle_of(&S.mig[i], MIG_DEVICE));
	}
	return NOT_FOUND;
}

// ---- A GPU ----

// profile_name is 1g.5gb, 1c.3g.20gb, 1g.5gb+me, with the memory rounded as
// NVIDIA's tools do: up to an eighth of the GPU's, then to a whole GiB.
static void profile_name(const struct gpu *g, uint ci, uint gi_profile, ullong mb, char out[96])
{
	uint gi = gi_profiles[gi_profile].slices;
	char compute[16] = "";
	ullong gib = (g->bytes + (1ULL << 30) - 1) >> 30, eighths = g->bytes > 0 ? ((mb << 23) + g->bytes - 1) / g->bytes : 0;
	if (ci != gi)
		snprintf(compute, sizeof compute, "%uc.", ci);
	snprintf(out, 96, "%s%ug.%llugb%s", compute, gi, (eighths * gib + 4) / 8, gi_profiles[gi_profile].suffix);
}

API(nvmlDeviceGetName)(Device d, char *out, uint length)
{
	CALL(GPU | MIG_DEVICE, d);
	char name[300], profile[96];
	if (!g->has_name)
		return NOT_SUPPORTED;
	if (m == NULL)
		return answer_text(g->name, out, length);
	profile_name(g, ci_slices[m->ci_profile], m->gi_profile, m->memory_mb, profile);
	snprintf(name, sizeof name, "%s MIG %s", g->name, profile);
	return answer_text(name, out, length);
}

API(nvmlDeviceGetUUID)(Device d, char *out, uint length)
{
	CALL(GPU | MIG_DEVICE, d);
	char of_mig[96];
	if (m)
		mig_uuid(m, of_mig);
	return answer_text(m ? of_mig : g->uuid, out, length);
}

API(nvmlDeviceGetSerial)(Device d, char *out, uint length)
{
	CALL(GPU, d);
	return g->serial[0] ? answer_text(g->serial, out, length) : NOT_SUPPORTED;
}

API(nvmlDeviceGetIndex)(Device d, uint *out) { CALL(GPU | MIG_DEVICE, d); ANSWER(out, (uint)(m ? m->index : g->index)); }
API(nvmlDeviceGetMinorNumber)(Device d, uint *out) { CALL(GPU, d); ANSWER(out, (uint)g->minor); }
API(nvmlDeviceGetBrand)(Device d, uint *out) { CALL(GPU, d); ANSWER(out, (uint)g->brand); }
API(nvmlDeviceGetArchitecture)(Device d, uint *out) { CALL(GPU, d); KNOWN(g->arch); ANSWER(out, (uint)g->arch); }
API(nvmlDeviceGetComputeMode)(Device d, uint *out) { CALL(GPU, d); ANSWER(out, 0); }
API(nvmlDeviceGetPersistenceMode)(Device d, uint *out) { CALL(GPU, d); ANSWER(out, 0); }
API(nvmlDeviceGetVirtualizationMode)(Device d, uint *out) { CALL(GPU, d); ANSWER(out, (uint)g->virtualization); }

API(nvmlDeviceGetCudaComputeCapability)(Device d, int *major, int *minor)
{
	CALL(GPU, d);
	if (!g->has_cc)
		return NOT_SUPPORTED;
	NEED(major);
	*major = g->cc[0];
	ANSWER(minor, (int)g->cc[1]);
}

static Return memory(const struct gpu *g, const struct mig *m, Memory *out)
{
	ullong total = m ? (ullong)m->memory_mb << 20 : (ullong)g->bytes, used = total / 256;
	NEED(out);
	if (m == NULL)
		KNOWN(g->bytes);
	*out = (Memory){total, total - used, used};
	return SUCCESS;
}

API(nvmlDeviceGetMemoryInfo)(Device d, Memory *out) { CALL(GPU | MIG_DEVICE, d); return memory(g, m, out); }

API(nvmlDeviceGetMemoryInfo_v2)(Device d, Memory_v2 *out)
{
	CALL(GPU | MIG_DEVICE, d);
	NEED(out);
	if (out->version != VERSION(Memory_v2, 2))
		return ARGUMENT_VERSION_MISMATCH;
	Memory v1;
	Return r = memory(g, m, &v1);
	if (r == SUCCESS)
		*out = (Memory_v2){out->version, v1.total, v1.used, v1.free, 0};
	return r;
}

static void fill_pci(PciInfo *out, int version, const uint at[3], uint device_id, uint subsystem_id)
{
	snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0", at[0], at[1] & 0xff, at[2] & 0xff);
	out->domain = at[0], out->bus = at[1], out->device = at[2];
	out->device_id = device_id, out->subsystem_id = subsystem_id;
	if (version >= 3)
		snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", at[0], at[1] & 0xff, at[2] & 0xff);
}

static Return pci(const struct gpu *g, int version, PciInfo *out)
{
	NEED(out);
	if (!g->has_bus)
		return NOT_SUPPORTED;
	fill_pci(out, version, g->bus, (uint)g->dev, (uint)g->sub);
	return SUCCESS;
}

API(nvmlDeviceGetPciInfo)(Device d, PciInfo *out) { CALL(GPU, d); return pci(g, 1, out); }
API(nvmlDeviceGetPciInfo_v2)(Device d, PciInfo *out) { CALL(GPU, d); return pci(g, 2, out); }
API(nvmlDeviceGetPciInfo_v3)(Device d, PciInfo *out) { CALL(GPU, d); return pci(g, 3, out); }

API(nvmlDeviceGetAddressingMode)(Device d, AddressingMode *out)
{
	CALL(GPU, d);
	NEED(out);
	if (out->version != VERSION(AddressingMode, 1))
		return ARGUMENT_VERSION_MISMATCH;
	KNOWN(g->addressing);
	ANSWER(&out->value, (uint)g->addressing);
}

// ---- NVLink and fabric ----

API(nvmlDeviceGetGpuFabricInfo)(Device d, Fabric *out)
{
	CALL(GPU, d);
	NEED(out);
	KNOWN(g->fabric_state);
	memcpy(out->cluster, g->cluster, 16);
	out->status = (uint)g->fabric_status, out->clique = (uint)g->clique, out->state = (unsigned char)g->fabric_state;
	return SUCCESS;
}

API(nvmlDeviceGetGpuFabricInfoV)(Device d, Fabric_v3 *out) // or Fabric_v2, a part of it
{
	CALL(GPU, d);
	NEED(out);
	if (out->version != VERSION(Fabric_v2, 2) && out->version != VERSION(Fabric_v3, 3))
		return ARGUMENT_VERSION_MISMATCH;
	KNOWN(g->fabric_state);
	memcpy(out->cluster, g->cluster, 16);
	out->status = (uint)g->fabric_status, out->clique = (uint)g->clique, out->state = (unsigned char)g->fabric_state;
	out->health_mask = 0;
	if (out->version == VERSION(Fabric_v3, 3))
		out->health_summary = 0;
	return SUCCESS;
}

static int connected(const struct gpu *a, const struct gpu *b) { return a != b && (S.p2p_all || S.p2p[a->index][b->index]); }

// LINK checks a link's number; the functions after it want an active one.
#define LINK(link) KNOWN(g->links); if ((link) >= MAX_LINKS) return INVALID_ARGUMENT
#define ACTIVE(link) LINK(link); if ((link) >= g->links) return NOT_SUPPORTED

API(nvmlDeviceGetNvLinkState)(Device d, uint link, uint *out) { CALL(GPU, d); LINK(link); ANSWER(out, link < g->links); }
API(nvmlDeviceGetNvLinkVersion)(Device d, uint link, uint *out) { CALL(GPU, d); ACTIVE(link); ANSWER(out, (uint)g->link_version); }
API(nvmlDeviceGetNvLinkRemoteDeviceType)(Device d, uint link, uint *out) { CALL(GPU, d); ACTIVE(link); ANSWER(out, (uint)g->link_remote); }

// remote is a switch, or the connected GPUs in turn.
static Return remote(const struct gpu *g, int version, uint link, PciInfo *out)
{
	int peers = 0, n = 0;
	NEED(out);
	if (g->link_remote != 0) {
		fill_pci(out, version, (uint[3]){0, 0xc0 + link / 6, 0}, 0x22a310de, 0);
		return SUCCESS;
	}
	for (int i = 0; i < S.gpus; i++)
		peers += connected(g, &S.gpu[i]);
	for (int i = 0; i < S.gpus; i++)
		if (connected(g, &S.gpu[i]) && (int)link % peers == n++)
			return pci(&S.gpu[i], version, out);
	return NOT_SUPPORTED;
}

API(nvmlDeviceGetNvLinkRemotePciInfo)(Device d, uint link, PciInfo *out) { CALL(GPU, d); ACTIVE(link); return remote(g, 1, link, out); }
API(nvmlDeviceGetNvLinkRemotePciInfo_v2)(Device d, uint link, PciInfo *out) { CALL(GPU, d); ACTIVE(link); return remote(g, 3, link, out); }

API(nvmlDeviceGetP2PStatus)(Device d, Device other, uint capability, uint *out)
{
	CALL(GPU, d);
	struct gpu *peer = NULL;
	struct mig *no = NULL;
	if (resolve(other, &peer, &no) != GPU || peer == g || capability > 4)
		return INVALID_ARGUMENT;
	for (int i = 0; i < S.faults; i++) // an error of either GPU counts
		if (S.fault[i].kind == ERROR && S.fault[i].gpu == peer->index && same(S.fault[i].function, __func__))
			return (Return)S.fault[i].value;
	if (peer->lost)
		return GPU_IS_LOST;
	ANSWER(out, connected(g, peer) ? 0 : 5); // NVML_P2P_STATUS_OK, _NOT_SUPPORTED
}

// ---- MIG ----

API(nvmlDeviceGetMigMode)(Device d, uint *current, uint *pending)
{
	CALL(GPU, d);
	KNOWN(g->mig);
	NEED(current);
	*current = (uint)g->mig;
	ANSWER(pending, (uint)g->mig_pending);
}

// max_migs is 7, or as many as the text has; 0 without MIG or with it off.
static uint max_migs(const struct gpu *g)
{
	uint max = 7;
	for (int i = 0; i < S.migs; i++)
		if (S.mig[i].gpu == g->index && S.mig[i].index >= max)
			max = (uint)S.mig[i].index + 1;
	return g->mig == 1 ? max : 0;
}

API(nvmlDeviceGetMaxMigDeviceCount)(Device d, uint *out) { CALL(GPU, d); ANSWER(out, max_migs(g)); }

API(nvmlDeviceGetMigDeviceHandleByIndex)(Device d, uint index, Device *out)
{
	CALL(GPU, d);
	if (index >= max_migs(g))
		return INVALID_ARGUMENT;
	for (int i = 0; i < S.migs; i++)
		if (S.mig[i].gpu == g->index && S.mig[i].index == index)
			ANSWER(out, handle_of(&S.mig[i], MIG_DEVICE));
	return NOT_FOUND;
}

API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(Device d, Device *out) { CALL(MIG_DEVICE, d); ANSWER(out, g); }
API(nvmlDeviceIsMigDeviceHandle)(Device d, uint *out) { CALL(GPU | MIG_DEVICE, d); ANSWER(out, m != NULL); }
API(nvmlDeviceGetGpuInstanceId)(Device d, uint *out) { CALL(MIG_DEVICE, d); ANSWER(out, (uint)m->gi); }
API(nvmlDeviceGetComputeInstanceId)(Device d, uint *out) { CALL(MIG_DEVICE, d); ANSWER(out, (uint)m->ci); }

static Return attributes(const struct mig *m, Attributes *out)
{
	NEED(out);
	if (m == NULL)
		return NOT_SUPPORTED;
	*out = (Attributes){(uint)m->sms, (uint)m->copy, (uint)m->decoder, (uint)m->encoder, (uint)m->jpeg, (uint)m->ofa,
		(uint)m->slices, (uint)m->compute_slices, (ullong)m->memory_mb};
	return SUCCESS;
}

API(nvmlDeviceGetAttributes)(Device d, Attributes *out) { CALL(GPU | MIG_DEVICE, d); return attributes(m, out); }
API(nvmlDeviceGetAttributes_v2)(Device d, Attributes *out) { CALL(GPU | MIG_DEVICE, d); return attributes(m, out); }

// gi_profile describes a profile that the GPU has: a common one, or one that a
// MIG device in the text uses, whose figures it then gives.
static Return gi_profile(const struct gpu *g, uint profile, GpuInstanceProfile *out, char name[96])
{
	if (profile >= GI_PROFILES)
		return INVALID_ARGUMENT;
	const struct mig *used = NULL;
	for (int i = 0; i < S.migs; i++)
		if (S.mig[i].gpu == g->index && S.mig[i].gi_profile == profile)
			used = &S.mig[i];
	if (g->mig == ABSENT || (used == NULL && !gi_profiles[profile].common))
		return NOT_SUPPORTED;
	uint slices = gi_profiles[profile].slices;
	*out = (GpuInstanceProfile){.id = gi_profiles[profile].id, .slices = slices, .instances = 7 / slices ? 7 / slices : 1,
		.sms = 14 * slices, .copy = slices, .memory_mb = (g->bytes > 0 ? g->bytes >> 20 : 0) * gi_profiles[profile].eighths / 8};
	if (used) {
		out->sms = (uint)used->sms, out->copy = (uint)used->copy, out->decoder = (uint)used->decoder;
		out->encoder = (uint)used->encoder, out->jpeg = (uint)used->jpeg, out->ofa = (uint)used->ofa;
		out->memory_mb = (ullong)used->memory_mb;
	}
	char bare[96];
	profile_name(g, slices, profile, out->memory_mb, bare);
	snprintf(name, 96, "MIG %.90s", bare);
	return SUCCESS;
}

API(nvmlDeviceGetGpuInstanceProfileInfo)(Device d, uint profile, GpuInstanceProfile *out)
{
	CALL(GPU, d);
	NEED(out);
	char name[96];
	return gi_profile(g, profile, out, name);
}

API(nvmlDeviceGetGpuInstanceProfileInfoV)(Device d, uint profile, GpuInstanceProfile_v2 *out) // or _v3, by its version
{
	CALL(GPU, d);
	NEED(out);
	uint version = out->version;
	if (version != VERSION(GpuInstanceProfile_v2, 2) && version != VERSION(GpuInstanceProfile_v3, 3))
		return ARGUMENT_VERSION_MISMATCH;
	GpuInstanceProfile p;
	char name[96];
	Return r = gi_profile(g, profile, &p, name);
	if (r != SUCCESS)
		return r;
	if (version == VERSION(GpuInstanceProfile_v2, 2)) {
		*out = (GpuInstanceProfile_v2){version, p.id, p.p2p, p.slices, p.instances, p.sms, p.copy, p.decoder, p.encoder, p.jpeg, p.ofa, p.memory_mb, ""};
		strcpy(out->name, name);
	} else {
		GpuInstanceProfile_v3 *v3 = (void *)out;
		*v3 = (GpuInstanceProfile_v3){version, p.id, p.slices, p.instances, p.sms, p.copy, p.decoder, p.encoder, p.jpeg, p.ofa, p.memory_mb, "", 0};
		strcpy(v3->name, name);
	}
	return SUCCESS;
}

API(nvmlDeviceGetGpuInstanceById)(Device d, uint id, GpuInstance *out)
{
	CALL(GPU, d);
	if (g->mig != 1)
		return NOT_SUPPORTED;
	for (int i = 0; i < S.migs; i++)
		if (S.mig[i].gpu == g->index && S.mig[i].gi == id)
			ANSWER(out, handle_of(&S.mig[i], GI));
	return NOT_FOUND;
}

API(nvmlGpuInstanceGetInfo)(GpuInstance gi, GpuInstanceInfo *out)
{
	CALL(GI, gi);
	ANSWER(out, ((GpuInstanceInfo){g, (uint)m->gi, gi_profiles[m->gi_profile].id, {0, gi_profiles[m->gi_profile].eighths}}));
}

API(nvmlGpuInstanceGetComputeInstanceById)(GpuInstance gi, uint id, ComputeInstance *out)
{
	CALL(GI, gi);
	for (int i = 0; i < S.migs; i++)
		if (S.mig[i].gpu == m->gpu && S.mig[i].gi == m->gi && S.mig[i].ci == id)
			ANSWER(out, handle_of(&S.mig[i], CI));
	return NOT_FOUND;
}

// ci_profile describes a profile that fits the GPU instance of m. Of the two
// with one slice, and of the two with seven, the second is there only if used.
static Return ci_profile(const struct gpu *g, const struct mig *m, uint profile, uint engine, ComputeInstanceProfile *out, char name[96])
{
	if (profile >= CI_PROFILES || engine != 0)
		return INVALID_ARGUMENT;
	uint slices = ci_slices[profile], whole = gi_profiles[m->gi_profile].slices;
	int used = 0;
	for (int i = 0; i < S.migs; i++)
		used |= S.mig[i].gpu == m->gpu && S.mig[i].gi == m->gi && S.mig[i].ci_profile == profile;
	if (!used && (slices > whole || profile >= 7))
		return NOT_SUPPORTED;
	*out = (ComputeInstanceProfile){profile, slices, whole / slices, (uint)(m->sms * slices / (m->compute_slices ? m->compute_slices : 1)),
		(uint)m->copy, (uint)m->decoder, (uint)m->encoder, (uint)m->jpeg, (uint)m->ofa};
	char bare[96];
	profile_name(g, slices, m->gi_profile, m->memory_mb, bare);
	snprintf(name, 96, "MIG %.90s", bare);
	return SUCCESS;
}

API(nvmlGpuInstanceGetComputeInstanceProfileInfo)(GpuInstance gi, uint profile, uint engine, ComputeInstanceProfile *out)
{
	CALL(GI, gi);
	NEED(out);
	char name[96];
	return ci_profile(g, m, profile, engine, out, name);
}

API(nvmlGpuInstanceGetComputeInstanceProfileInfoV)(GpuInstance gi, uint profile, uint engine, ComputeInstanceProfile_v2 *out) // or _v3
{
	CALL(GI, gi);
	NEED(out);
	uint version = out->version;
	if (version != VERSION(ComputeInstanceProfile_v2, 2) && version != VERSION(ComputeInstanceProfile_v3, 3))
		return ARGUMENT_VERSION_MISMATCH;
	ComputeInstanceProfile p;
	char name[96];
	Return r = ci_profile(g, m, profile, engine, &p, name);
	if (r != SUCCESS)
		return r;
	*out = (ComputeInstanceProfile_v2){version, p.id, p.slices, p.instances, p.sms, p.copy, p.decoder, p.encoder, p.jpeg, p.ofa, ""};
	strcpy(out->name, name);
	if (version == VERSION(ComputeInstanceProfile_v3, 3))
		((ComputeInstanceProfile_v3 *)(void *)out)->capabilities = 0;
	return SUCCESS;
}

static Return ci_info(struct gpu *g, struct mig *m, ComputeInstanceInfo *out)
{
	ANSWER(out, ((ComputeInstanceInfo){g, handle_of(m, GI), (uint)m->ci, (uint)m->ci_profile, {0, ci_slices[m->ci_profile]}}));
}

API(nvmlComputeInstanceGetInfo)(ComputeInstance ci, ComputeInstanceInfo *out) { CALL(CI, ci); return ci_info(g, m, out); }
API(nvmlComputeInstanceGetInfo_v2)(ComputeInstance ci, ComputeInstanceInfo *out) { CALL(CI, ci); return ci_info(g, m, out); }
