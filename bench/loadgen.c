/* A load generator for remoting servers, faster than they are.
 *
 *   loadgen load HOST PORT --frames FILE --connections C --inflight K --seconds S --warmup W
 *   loadgen answer PORT --frame FILE
 *
 * "load" sends the frames of FILE (complete frames, concatenated) repeatedly over C connections, each
 * with K requests in flight. It prints one JSON line: responses, failures (a response code other than
 * 0), the remark of the first failure, and latency percentiles in microseconds. "total" includes the
 * responses of the warm-up; all other figures are without it. Responses are matched
 * to requests in sending order, which is exact for servers that answer in order.
 * "answer" is a null server, which parses only the length and sends FILE for every frame: the rate of
 * "load" with it is the limit of the generator.
 *
 * One thread, epoll, loopback IPv4 only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FRAME (16u * 1024 * 1024 + 4)
#define READ_BYTES (256 * 1024)
#define BUCKETS 4096 /* 64 powers of two, 64 steps each */

typedef struct {
    const uint8_t *start;
    uint32_t size;
} Frame;

typedef struct {
    int fd;
    uint8_t *in;
    size_t in_size, in_capacity;
    uint8_t *out;
    size_t out_size, out_sent, out_capacity;
    uint64_t *sent_at; /* ring of inflight send times */
    uint32_t ring_head, ring_count;
    uint32_t next_frame;
    int wants_write;
} Conn;

static void die(const char *what) {
    fprintf(stderr, "loadgen: %s: %s\n", what, errno ? strerror(errno) : "bad input");
    exit(2);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint32_t read_u32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint8_t *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) die(path);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    uint8_t *data = malloc(n > 0 ? (size_t)n : 1);
    if (!data || fread(data, 1, (size_t)n, f) != (size_t)n) die(path);
    fclose(f);
    *size = (size_t)n;
    return data;
}

static void set_up_socket(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL, 0) | O_NONBLOCK);
}

/* Response code of a frame that starts at p (length word included); -1 if it cannot be read. */
static int response_code(const uint8_t *p, uint32_t size) {
    if (size < 8) return -1;
    uint32_t header = read_u32(p + 4) & 0xffffff;
    if (header + 8 > size) return -1;
    if (p[4] == 1) return header < 2 ? -1 : (int16_t)((uint16_t)p[8] << 8 | p[9]);
    const uint8_t *key = memmem(p + 8, header, "\"code\":", 7);
    return key ? atoi((const char *)key + 7) : -1;
}

/* The remark of the first failure, as text that is valid in JSON. */
static char first_failure[161];

static void note_failure(const uint8_t *p, uint32_t size, int code) {
    if (first_failure[0] || size < 8) return;
    uint32_t header = read_u32(p + 4) & 0xffffff, length = 0;
    const uint8_t *text = p;
    if (p[4] == 1 && header >= 21 && header + 8 <= size) {
        length = read_u32(p + 25); /* code, language, version, opaque and flag come before */
        text = p + 29;
        if (length > header - 21) length = 0;
    } else if (p[4] == 0 && header + 8 <= size) {
        text = memmem(p + 8, header, "\"remark\":\"", 10);
        length = text ? header - (uint32_t)(text - p - 8) - 10 : 0;
        text = text ? text + 10 : p;
    }
    int at = snprintf(first_failure, sizeof first_failure, "code %d: ", code);
    for (uint32_t i = 0; i < length && at < (int)sizeof first_failure - 1 && text[i] != '"'; i++)
        first_failure[at++] = text[i] < ' ' || text[i] > '~' || text[i] == '\\' ? '?' : (char)text[i];
}

static uint64_t histogram[BUCKETS];

static void record_latency(uint64_t ns) {
    if (ns < 64) ns = 64;
    int power = 63 - __builtin_clzll(ns);
    histogram[(power << 6) | (int)((ns >> (power - 6)) & 63)]++;
}

static double percentile(double share, uint64_t total) {
    uint64_t wanted = (uint64_t)(share * (double)total), seen = 0;
    for (int i = 0; i < BUCKETS; i++) {
        seen += histogram[i];
        if (seen > wanted) {
            int power = i >> 6;
            return (double)((1ull << power) + ((uint64_t)(i & 63) << (power - 6))) / 1000.0;
        }
    }
    return 0;
}

static void flush_out(Conn *c, int epoll) {
    while (c->out_sent < c->out_size) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_size - c->out_sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN || errno == EINTR) break;
            die("send");
        }
        c->out_sent += (size_t)n;
    }
    if (c->out_sent == c->out_size) c->out_sent = c->out_size = 0;
    int wants = c->out_size != 0;
    if (wants != c->wants_write) {
        struct epoll_event e = {.events = EPOLLIN | (wants ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &e);
        c->wants_write = wants;
    }
}

static void append_out(Conn *c, const uint8_t *data, size_t size) {
    if (c->out_sent && c->out_size + size > c->out_capacity) {
        memmove(c->out, c->out + c->out_sent, c->out_size - c->out_sent);
        c->out_size -= c->out_sent;
        c->out_sent = 0;
    }
    if (c->out_size + size > c->out_capacity) {
        c->out_capacity = (c->out_size + size) * 2;
        c->out = realloc(c->out, c->out_capacity);
        if (!c->out) die("memory");
    }
    memcpy(c->out + c->out_size, data, size);
    c->out_size += size;
}

/* Read the available bytes; returns 0 at the end of the stream. */
static int fill_in(Conn *c) {
    if (c->in_capacity - c->in_size < READ_BYTES) {
        c->in_capacity = c->in_size + 2 * READ_BYTES;
        c->in = realloc(c->in, c->in_capacity);
        if (!c->in) die("memory");
    }
    ssize_t n = recv(c->fd, c->in + c->in_size, c->in_capacity - c->in_size, 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? 1 : 0;
    c->in_size += (size_t)n;
    return n > 0;
}

static const char *option(int argc, char **argv, const char *name, const char *fallback) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    if (!fallback) {
        fprintf(stderr, "loadgen: %s is missing\n", name);
        exit(2);
    }
    return fallback;
}

static int load(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
    if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1 || (ntohl(address.sin_addr.s_addr) >> 24) != 127) {
        fprintf(stderr, "loadgen: only loopback addresses\n");
        return 2;
    }
    int connections = atoi(option(argc, argv, "--connections", "64"));
    uint32_t inflight = (uint32_t)atoi(option(argc, argv, "--inflight", "1"));
    double seconds = atof(option(argc, argv, "--seconds", "5"));
    double warmup = atof(option(argc, argv, "--warmup", "1"));
    size_t size;
    uint8_t *data = read_file(option(argc, argv, "--frames", NULL), &size);

    uint32_t frame_count = 0, capacity = 1024;
    Frame *frames = malloc(capacity * sizeof *frames);
    for (size_t at = 0; at + 4 <= size;) {
        uint32_t length = read_u32(data + at) + 4;
        if (length > MAX_FRAME || at + length > size) die("frames");
        if (frame_count == capacity) frames = realloc(frames, (capacity *= 2) * sizeof *frames);
        frames[frame_count++] = (Frame){data + at, length};
        at += length;
    }
    if (!frame_count || connections < 1 || !inflight) die("frames");

    int epoll = epoll_create1(0);
    Conn *conns = calloc((size_t)connections, sizeof *conns);
    for (int i = 0; i < connections; i++) {
        Conn *c = &conns[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
        set_up_socket(c->fd);
        c->sent_at = calloc(inflight, sizeof *c->sent_at);
        c->next_frame = (uint32_t)i * inflight % frame_count;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e);
    }
    uint64_t start = now_ns(), measure_from = start + (uint64_t)(warmup * 1e9);
    uint64_t end = measure_from + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < connections; i++) {
        Conn *c = &conns[i];
        uint64_t t = now_ns();
        for (uint32_t k = 0; k < inflight; k++) {
            append_out(c, frames[c->next_frame].start, frames[c->next_frame].size);
            c->next_frame = (c->next_frame + 1) % frame_count;
            c->sent_at[k] = t;
        }
        c->ring_count = inflight;
        flush_out(c, epoll);
    }
    uint64_t total = 0, responses = 0, failures = 0, bytes = 0, now = start, last_progress = start;
    struct epoll_event events[256];
    while (now < end) {
        int n = epoll_wait(epoll, events, 256, 100);
        now = now_ns();
        if (n == 0 && now - last_progress > 10000000000ull) {
            fprintf(stderr, "loadgen: no response for 10 s\n");
            return 3;
        }
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush_out(c, epoll);
            if (!(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            if (!fill_in(c)) {
                fprintf(stderr, "loadgen: the server closed a connection\n");
                return 3;
            }
            now = now_ns();
            size_t at = 0;
            while (c->in_size - at >= 4) {
                uint32_t length = read_u32(c->in + at) + 4;
                if (length > MAX_FRAME) die("response");
                if (c->in_size - at < length) break;
                last_progress = now;
                total++;
                if (now >= measure_from) {
                    responses++;
                    bytes += length;
                    int code = response_code(c->in + at, length);
                    if (code != 0) {
                        failures++;
                        note_failure(c->in + at, length, code);
                    }
                    record_latency(now - c->sent_at[c->ring_head]);
                }
                c->sent_at[c->ring_head] = now;
                c->ring_head = (c->ring_head + 1) % inflight;
                append_out(c, frames[c->next_frame].start, frames[c->next_frame].size);
                c->next_frame = (c->next_frame + 1) % frame_count;
                at += length;
            }
            memmove(c->in, c->in + at, c->in_size - at);
            c->in_size -= at;
            flush_out(c, epoll);
        }
    }
    double measured = (double)(now - measure_from) / 1e9;
    printf("{\"total\":%llu,\"responses\":%llu,\"failures\":%llu,\"bytes\":%llu,\"seconds\":%.3f,"
           "\"per_second\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"first_failure\":\"%s\"}\n",
           (unsigned long long)total, (unsigned long long)responses, (unsigned long long)failures,
           (unsigned long long)bytes, measured,
           (double)responses / measured, percentile(0.50, responses), percentile(0.99, responses),
           first_failure);
    return 0;
}

static void answer(int argc, char **argv) {
    size_t size;
    uint8_t *frame = read_file(option(argc, argv, "--frame", NULL), &size);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 512)) die("listen");
    socklen_t address_size = sizeof address;
    getsockname(listener, (struct sockaddr *)&address, &address_size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int epoll = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (!c) {
                int fd = accept(listener, NULL, NULL);
                if (fd < 0) continue;
                set_up_socket(fd);
                c = calloc(1, sizeof *c);
                c->fd = fd;
                e = (struct epoll_event){.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
                continue;
            }
            if (events[i].events & EPOLLOUT) flush_out(c, epoll);
            if (!(events[i].events & EPOLLIN)) continue;
            if (!fill_in(c)) {
                close(c->fd); /* its buffers are not freed: they are small */
                continue;
            }
            size_t at = 0;
            while (c->in_size - at >= 4) {
                uint32_t length = read_u32(c->in + at) + 4;
                if (length > MAX_FRAME || c->in_size - at < length) break;
                append_out(c, frame, size);
                at += length;
            }
            memmove(c->in, c->in + at, c->in_size - at);
            c->in_size -= at;
            flush_out(c, epoll);
        }
    }
}

int main(int argc, char **argv) {
    if (argc >= 4 && !strcmp(argv[1], "load")) return load(argc, argv);
    if (argc >= 3 && !strcmp(argv[1], "answer")) answer(argc, argv); /* does not return */
    fprintf(stderr, "usage: loadgen load HOST PORT --frames FILE [--connections C] [--inflight K]\n"
                    "                    [--seconds S] [--warmup W]\n"
                    "       loadgen answer PORT --frame FILE\n");
    return 2;
}
