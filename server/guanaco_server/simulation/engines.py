"""Simulates seasons whose submissions share a few model servers: GPU time until the verdict, by the policy that says who is awake.

Users wait for each server: one that is awake gives a rating every ``rating_s``, and none while its submission is changed, which takes
``swap_s``. So GPU hours are the servers' time, until the verdict. Who is awake is decided by the platform's own functions: the worth
of the next ratings (scaling/worth.py), or the least useful one sleeps (scaling/budget.py).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from guanaco_server.leaderboard.ranking.rules import standings
from guanaco.competitions import RankingRule
from guanaco_server.scaling.budget import Budget, Claim, Room, Tenant, share
from guanaco_server.scaling.worth import Contender, worths, best_change
from guanaco_server.statistics.decisions import compare
from guanaco_server.statistics.votes import VoteCount

MOST = 400_000

@dataclass
class State:
    truth: list[float]
    up: list[int]
    total: list[int]
    chance: random.Random

    def rate(self, i: int, k: int) -> None:
        for _ in range(k):
            self.up[i] += self.chance.random() < self.truth[i]
        self.total[i] += k

    def votes(self, i): return VoteCount(self.up[i], self.total[i]-self.up[i])

    def decided(self, margin):
        counts={str(i): self.votes(i) for i in range(len(self.truth))}
        board=standings(RankingRule.THUMBS_UP, counts, (), ())
        if len(board)<len(counts): return None
        L=board[0].submission_id
        ok=all(compare(counts[L],counts[o.submission_id],margin=margin,members=len(board),foretells=False).is_within for o in board[1:])
        return int(L) if ok else None

def season(policy, seed, n=40, engines=2, swap_s=10., rating_s=10., margin=.05, target=50, most=100_000, mean=.6, spread=.107):
    ch=random.Random(seed)
    strength = mean*(1-mean)/spread**2-1
    st=State([ch.betavariate(mean*strength,(1-mean)*strength) for _ in range(n)],[0]*n,[0]*n,ch)
    resident=list(range(engines)); since=[0.]*n; target_now=[target]
    used=[0.]*n
    q=[(swap_s,e) for e in range(engines)]; heapq.heapify(q)
    look=100; swaps=engines
    done=0
    while done<most:
        t,e=heapq.heappop(q)
        k=max(20, int(.03*done))
        i=resident[e]
        if policy=='least': k=min(max(1,target_now[0]-st.total[i]), k)
        if policy=='drawn': k=min(k, 64)
        st.rate(i,k); done+=k; t+=k*rating_s; used[i]=t
        if done>=look:
            L=st.decided(margin)
            if L is not None:
                return dict(hours=t*engines/3600, ratings=done, swaps=swaps, wrong=max(st.truth)-st.truth[L]>margin)
            look=max(look+100,int(look*1.05))
        new=CHOOSE[policy](st,resident,e,swap_s,rating_s,margin,target_now,used,t)
        if new!=i:
            resident[e]=new; swaps+=1; t+=swap_s
        heapq.heappush(q,(t,e))
    return dict(hours=t*engines/3600, ratings=None, swaps=swaps, wrong=False)

def worth_choice(st,resident,e,swap_s,rating_s,margin,target_now,used,t):
    con=[Contender(str(i),st.votes(i),i in resident,swap_s,rating_s) for i in range(len(st.truth))]
    w=worths(con,margin)
    i=resident[e]
    c=best_change(w,[str(i)],[str(j) for j in range(len(st.truth)) if j not in resident]); return int(c[0]) if c else i

def least_choice(st,resident,e,swap_s,rating_s,margin,target_now,used,t):
    i=resident[e]
    if st.total[i]<target_now[0]: return i
    asleep=[j for j in range(len(st.truth)) if j not in resident]
    if all(st.total[j]>=target_now[0] for j in asleep): target_now[0]+=50
    lack=[j for j in asleep if st.total[j]<target_now[0]]
    return min(lack,key=lambda j:used[j])

CHOOSE={'worth':worth_choice,'least':least_choice}
