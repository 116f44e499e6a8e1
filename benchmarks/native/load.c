/* load.c - HTTP/1.1 load generator for OpenAI-style endpoints (single thread, epoll, raw sockets).
 * build: gcc -O2 -o load load.c
 *   closed loop : ./load -p PORT -c 32 -d 4            (-s for SSE streams)
 *   fixed rate  : ./load -p PORT -r 100 -d 5           open loop; latency counts from the scheduled time
 *   hold        : ./load -p PORT -H 1000 -d 6 -s       opens 1000 streams, prints STEADY when all have a first token,
 *                                                      then holds d seconds; per-token gaps are taken in that window
 * -u with a %d in it is another path for each request, of -n in turn; a path with /conversations/ gets Guanaco's own body
 * -P prompt bytes (2048)  -t tokens  -y token delay us  -u path  -m model  -R ramp per second for hold (500)
 * -N ends a closed loop after so many requests
 * -L: latency is also split into TTFT (first SSE "data:" byte).  One JSON line on stdout.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct conn {
  int fd, st;              /* st: 0 closed 1 idle 2 in flight */
  int sent, hdr, status, close_after, used;
  int64_t clen, got; int chunked, cst; int64_t csz;  /* framing: cst 0 size line 1 data 2 crlf 3 trailer */
  char h[4096]; int hl; char line[32]; int ll;
  int nl; long toks; int64_t t0, tfirst, tlast;
} conn;
static int ep, port = 8080, C = 32, rate, hold, stream, ptok = 50, ramp = 500, pbytes = 2048; static int64_t delay; static double dur = 4;
static const char *path = "/v1/chat/completions", *model = "mock", *key = "sk-test";
static char **reqs; static int *reqlens, nreqs, nextreq; static conn *cs; static int ncs;
typedef struct { int64_t *v; long n, cap; } vec; static vec lat, ttft, gap;
static long ok, err, toks, bytes_in; static char errs[256]; static int measuring = 1;
static int most = 1 << 30; static int *idle, nidle; static int64_t *q; static long qh, qt, qcap;
static int64_t now_us(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }
static void push(vec *v, int64_t x) { if (v->n == v->cap) { v->cap = v->cap ? v->cap * 2 : 65536; v->v = realloc(v->v, v->cap * 8); } v->v[v->n++] = x; }
static int cmp(const void *a, const void *b) { int64_t x = *(int64_t *)a, y = *(int64_t *)b; return x < y ? -1 : x > y; }
static double pct(vec *v, double p) { if (!v->n) return -1; long i = p * v->n; if (i >= v->n) i = v->n - 1; return v->v[i] / 1000.0; }
static void fail(conn *c, const char *why) {
  if (c->st == 2) { err++; if (!*errs) snprintf(errs, sizeof errs, "%s status=%d errno=%d", why, c->status, errno); }
  if (c->fd >= 0) close(c->fd); c->fd = -1; c->st = 0;
}
static int dial(conn *c) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}; int one = 1;
  c->fd = socket(AF_INET, SOCK_STREAM, 0); if (c->fd < 0) return -1;
  if (connect(c->fd, (void *)&a, sizeof a)) { close(c->fd); c->fd = -1; return -1; }
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); 
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c}; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e); c->used = 0; return 0;
}
static void start(conn *c, int64_t t0) {
  if (c->st == 0 && dial(c)) { c->st = 2; c->status = 0; fail(c, "connect"); return; }
  c->st = 2; c->hdr = 0; c->hl = 0; c->status = 0; c->clen = -1; c->chunked = 0; c->cst = 0; c->csz = 0; c->ll = 0; c->got = 0; c->nl = 0; c->toks = 0; c->tfirst = c->tlast = 0; c->close_after = 0; c->t0 = t0;
  int which = nextreq++ % nreqs; char *req = reqs[which]; int reqlen = reqlens[which];
  ssize_t n = send(c->fd, req, reqlen, MSG_NOSIGNAL);
  if (n != reqlen && c->used) { close(c->fd); c->fd = -1; if (dial(c)) { fail(c, "connect"); return; } n = send(c->fd, req, reqlen, MSG_NOSIGNAL); }
  if (n != reqlen) fail(c, "send");
}
static void body(conn *c, char *p, int n, int64_t t) {     /* decoded body bytes: count SSE events by blank lines */
  if (!c->tfirst) { c->tfirst = t; }
  if (!stream) return;
  long k = 0; for (char *e = p + n; p < e; p++) { if (*p == '\n') { if (c->nl) { k++; c->nl = 0; } else c->nl = 1; } else if (*p != '\r') c->nl = 0; }
  if (k) { c->toks += k; if (measuring) { toks += k; if (c->tlast) push(&gap, t - c->tlast); } c->tlast = t; }
}
/* returns 1 when the response is complete, -1 on error */
static int feed(conn *c, char *p, int n, int64_t t) {
  if (!c->hdr) {
    int k = n; if (c->hl + k > (int)sizeof c->h - 1) k = sizeof c->h - 1 - c->hl; int old = c->hl;
    memcpy(c->h + c->hl, p, k); c->hl += k; c->h[c->hl] = 0;
    char *e = strstr(c->h, "\r\n\r\n"); if (!e) return c->hl >= (int)sizeof c->h - 1 ? -1 : 0;
    *e = 0; c->status = atoi(c->h + 9); char *x = strcasestr(c->h, "\r\ncontent-length:"); if (x) c->clen = atoll(x + 17);
    x = strcasestr(c->h, "\r\ntransfer-encoding:"); if (x && strcasestr(x, "chunked")) c->chunked = 1;
    if (strcasestr(c->h, "\r\nconnection: close")) c->close_after = 1;
    c->hdr = 1; int used = e + 4 - c->h - old; p += used; n -= used;
    if (!c->chunked && c->clen == 0) return 1;
  }
  if (!c->chunked) { if (n) body(c, p, n, t); c->got += n; return c->clen >= 0 && c->got >= c->clen; }
  while (n > 0) {
    if (c->cst == 1) { int k = n < c->csz ? n : c->csz; body(c, p, k, t); p += k; n -= k; c->csz -= k; if (!c->csz) c->cst = 2; continue; }
    char ch = *p++; n--;
    if (c->cst == 2) { if (ch == '\n') c->cst = 0; continue; }
    if (ch == '\n') {
      c->line[c->ll] = 0;
      if (c->cst == 3) { if (!c->ll) return 1; c->ll = 0; continue; }
      c->csz = strtoll(c->line, NULL, 16); c->ll = 0; c->cst = c->csz ? 1 : 3;
    } else if (ch != '\r' && c->ll < 30) c->line[c->ll++] = ch;
  }
  return 0;
}
static void done(conn *c, int64_t t) {
  if (c->status != 200) { err++; if (!*errs) snprintf(errs, sizeof errs, "status=%d %.100s", c->status, c->h); }
  else if (stream && c->toks < ptok) { err++; if (!*errs) snprintf(errs, sizeof errs, "short stream %ld", c->toks); }
  else { ok++; push(&lat, t - c->t0); if (c->tfirst) push(&ttft, c->tfirst - c->t0); }
  c->used = 1; c->st = 1; if (c->close_after) { close(c->fd); c->fd = -1; c->st = 0; }
}
int main(int ac, char **av) {
  int o; while ((o = getopt(ac, av, "p:c:r:H:d:sP:t:y:u:m:R:k:Ln:N:")) > 0) switch (o) {
    case 'p': port = atoi(optarg); break; case 'c': C = atoi(optarg); break; case 'r': rate = atoi(optarg); break; case 'H': hold = atoi(optarg); break;
    case 'd': dur = atof(optarg); break; case 's': stream = 1; break; case 'P': pbytes = atoi(optarg); break; case 't': ptok = atoi(optarg); break;
    case 'y': delay = atoll(optarg); break; case 'u': path = optarg; break; case 'm': model = optarg; break; case 'R': ramp = atoi(optarg); break; case 'k': key = optarg; break; case 'n': nreqs = atoi(optarg); break; case 'N': most = atoi(optarg); break; }
  char *pr = malloc(pbytes + 64); int k = sprintf(pr, "[mock tokens=%d delay_us=%ld ] ", ptok, (long)delay); for (; k < pbytes; k++) pr[k] = "the quick brown fox "[k % 20]; pr[k] = 0;
  char *bd; int bl = strstr(path, "/conversations/") ? asprintf(&bd, "{\"content\":\"%s\",\"stream\":%s}", pr, stream ? "true" : "false")
         : strstr(path, "chat") ? asprintf(&bd, "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":%d,\"stream\":%s}", model, pr, ptok, stream ? "true" : "false")
                                : asprintf(&bd, "{\"model\":\"%s\",\"prompt\":\"%s\",\"max_tokens\":%d,\"stream\":%s}", model, pr, ptok, stream ? "true" : "false");
  ep = epoll_create1(0); ncs = hold ? hold : rate ? 4096 : C; cs = calloc(ncs, sizeof *cs); idle = calloc(ncs, sizeof *idle); if (!nreqs) nreqs = ncs; reqs = calloc(nreqs, sizeof *reqs); reqlens = calloc(nreqs, sizeof *reqlens);
  for (int i = 0; i < nreqs; i++) { char pt[512]; snprintf(pt, sizeof pt, path, i);
    reqlens[i] = asprintf(&reqs[i], "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: load\r\nAccept: */*\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", pt, port, key, bl, bd); }
  for (int i = 0; i < ncs; i++) cs[i].fd = -1;
  qcap = rate ? (long)(rate * dur) + 16 : 1; q = calloc(qcap, 8);
  if (rate) for (int i = ncs; i--;) idle[nidle++] = i;
  static char buf[1 << 16]; struct epoll_event ev[512]; int64_t t0 = now_us(), tend = t0 + dur * 1e6, grace = 0; long issued = 0, opened = 0; int steady = 0, firsts = 0;
  if (hold) { measuring = 0; tend = t0 + (int64_t)(60e6 + 1e6 * hold / ramp); }
  int inflight = 0; int64_t tm0 = t0, tm1 = 0;
  if (!rate && !hold) for (int i = 0; i < ncs; i++) { start(&cs[i], now_us()); if (cs[i].st == 2) inflight++; }
  for (;;) {
    int64_t t = now_us(), to = 100000;                    /* microseconds */
    if (rate) { while (t < tend && t0 + issued * 1000000LL / rate <= t) { q[qt++ % qcap] = t0 + issued++ * 1000000LL / rate; }
      while (qh < qt && nidle) { conn *c = &cs[idle[--nidle]]; start(c, q[qh++ % qcap]); if (c->st == 2) inflight++; else idle[nidle++] = c - cs; }
      int64_t nx = t0 + issued * 1000000LL / rate - now_us(); to = nx <= 0 ? 0 : nx; }
    if (hold && opened < hold) { int b = 0; while (opened < hold && t0 + opened * 1000000LL / ramp <= t && b++ < 64) { conn *c = &cs[opened++]; start(c, t); if (c->st == 2) inflight++; } to = 1000; }
    if (hold && !steady && opened == hold && firsts + err >= hold) { steady = 1; measuring = 1; toks = 0; tm0 = now_us(); tend = tm0 + dur * 1e6; printf("STEADY %d err=%ld\n", firsts, err); fflush(stdout); }
    if (t >= tend) { if (hold) { tm1 = t; break; } if (!grace) { grace = t + 10000000; tm1 = t; measuring = 0; } if (!inflight || t > grace) break; if (!rate) break; to = 50000; }
    if (hold && steady && !inflight) { tm1 = t; break; }
    struct timespec ts = {to / 1000000, to % 1000000 * 1000}; int n = epoll_pwait2(ep, ev, 512, &ts, NULL); t = now_us();
    for (int i = 0; i < n; i++) {
      conn *c = ev[i].data.ptr; if (c->fd < 0) continue;
      ssize_t r = recv(c->fd, buf, sizeof buf, MSG_DONTWAIT);
      if (r < 0 && errno == EAGAIN) continue;
      int res; bytes_in += r > 0 ? r : 0; int hadf = c->toks > 0;
      if (r <= 0) { if (c->st != 2) { close(c->fd); c->fd = -1; c->st = 0; continue; }
        res = (c->hdr && !c->chunked && c->clen < 0 && r == 0) ? 1 : -1; c->close_after = 1; }
      else { if (c->st != 2) continue; res = feed(c, buf, r, t); }
      if (hold && !hadf && c->toks > 0) firsts++;
      if (!res) continue;
      inflight--; if (res > 0) done(c, t); else fail(c, "read");
      if (rate) idle[nidle++] = c - cs;
      else if (!hold && t < tend && nextreq < most) { if (c->st == 0 && err > 1000 && ok == 0) continue; start(c, now_us()); if (c->st == 2) inflight++; }
    }
    if (!rate && !hold && !inflight) break;
  }
  if (!tm1) tm1 = now_us(); double el = (tm1 - tm0) / 1e6;
  qsort(lat.v, lat.n, 8, cmp); qsort(ttft.v, ttft.n, 8, cmp); qsort(gap.v, gap.n, 8, cmp);
  printf("{\"mode\":\"%s\",\"stream\":%d,\"secs\":%.3f,\"ok\":%ld,\"err\":%ld,\"unfinished\":%d,\"rps\":%.1f,\"tok_s\":%.1f,\"lat_ms\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f},\"ttft_ms\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f},\"gap_ms\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f},\"steady\":%d,\"firsterr\":\"",
    hold ? "hold" : rate ? "rate" : "closed", stream, el, ok, err, inflight, ok / el, toks / el, pct(&lat, .5), pct(&lat, .9), pct(&lat, .99), pct(&ttft, .5), pct(&ttft, .9), pct(&ttft, .99), pct(&gap, .5), pct(&gap, .9), pct(&gap, .99), firsts);
  for (char *s = errs; *s; s++) if (*s >= 32 && *s != '"' && *s != '\\') putchar(*s);
  printf("\"}\n"); return 0;
}
