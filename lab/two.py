import sys, time, pickle; sys.path.insert(0,"lab")
import os; DATA=os.environ.get("CODEDFEDL_DATA")
import numpy as np, torch
from feat import tangent, sketch
torch.set_num_threads(1)
from codedfedl.runs.config import Experiment
from codedfedl.runs.grid import cells
from codedfedl.simulation.units import units, datasets, _planned_and_actual
from codedfedl.simulation.client_data import embedded, task_of
from codedfedl.simulation.engine import Simulation, Contender
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.learning.optimisers import Schedule
from codedfedl.schemes import make_scheme
from codedfedl.random import stream
class Tan:
    largest_square=np.inf; shift_invariant=False
    def __init__(s,net,model,q,skip,seed,norm=True):
        s.net,s.model,s.q,s.skip,s.seed,s.norm=net,model,q,skip,seed,norm
        s.a=stream(seed,"subset",77).choice([-1.,1.],10)/np.sqrt(10)
        s.q=min(q,s._n())
    def _n(s): return 401+ {0:1376,2:1168,4:0}[s.skip]
    def size(s,d): return s.q
    def macs(s,d): return {0:61600+86400-4000,2:57600+28800,4:57600}[s.skip]+s._n()
    def transform(s,X):
        h,G=tangent(s.net,s.model,np.ascontiguousarray(X,dtype=np.float32),s.a,s.skip) if s.skip<4 else tangent(s.net,s.model,np.ascontiguousarray(X,dtype=np.float32),s.a,2)
        hb=np.hstack([h,np.ones((len(h),1),np.float32)])
        F=hb if s.skip==4 else np.hstack([hb,sketch(G,s.q-401,stream(s.seed,"subset",78))])
        if s.norm: F=F/np.maximum(np.linalg.norm(F,axis=1,keepdims=True),1e-9)
        return F.astype(np.float32)
def setup(name,seed):
    exp=Experiment.model_validate(dict(seeds=[seed],data=dict(name=name),fleet=dict(name="paper"),features=dict(kind="identity"),training=dict(epochs=3000),schemes=[dict(name="balanced")]))
    cs=cells(exp); return exp,next(iter(units(cs,[seed],datasets(cs,DATA))))
def phase2(exp,u,fm,schemes,ridge,hours,problem=None):
    problem=problem or embedded(u.dataset,u.deal(),fm,"cpu")
    task=task_of(u.dataset,u.deal(),fm,epochs=3000,schedule=Schedule(1.0,.8,()),ridge=ridge)
    fl=_planned_and_actual(exp.fleet,u,task)
    ent=[Contender(l,s,task,*fl,followed=False,hours=hours) for l,s in schemes.items()]
    sim=Simulation(problem,ent,u.seed)
    for _ in sim.run(): pass
    res={}
    for s in sim.settings:
        t=0;h=[]
        for r in s.records:
            t+=r.seconds; h.append((t/3600,r.metric))
        res[s.label]=(h,s.facts)
    return res,problem
