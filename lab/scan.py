"""Usage: python lab/scan.py NAME SEED OUT: train with paced once, then every second phase, 16 at a time."""
import sys, os; sys.path.insert(0,"lab")
os.environ.update(OMP_NUM_THREADS="1",OPENBLAS_NUM_THREADS="1")
from two import *
from multiprocessing import Pool
name,seed,out=sys.argv[1],int(sys.argv[2]),sys.argv[3]
os.makedirs(out,exist_ok=True)
MARKS=[0.05,0.1,0.15,0.2,0.25,0.3,0.4,0.5,0.7]
def train():
    exp=Experiment.model_validate(dict(seeds=[seed],data=dict(name=name),fleet=dict(name="paper"),model=dict(kind="torch",module="cnn"),
        training=dict(epochs=100000,hours=2.0,ridge=0.0),schemes=[dict(name="paced",least=10)]))
    cs=cells(exp); u=next(iter(units(cs,[seed],datasets(cs,DATA)))); p=u.problem("cpu"); c=u.contenders()[0]
    sim=Simulation(p,[c],seed); s=sim.settings[0]; res=[]; got=[]; k=0
    acc=lambda m: float((c.task.learner.scores(m,p.test_features).argmax(1)==p.test_classes).mean())
    res.append((0.0,np.asarray(s.state.model).copy(),"last"))
    marks=MARKS+[0.8,1.0,1.25,1.5,1.75,1.99]
    while (ask:=s.ask()) is not None:
        sim.play([(s,ask)],measured=False); got.append(np.asarray(s.state.model).copy()); h=s.timeline.now/3600
        if k<len(marks) and h>=marks[k]:
            m=got[-1]; a=np.mean(got[len(got)*2//3:],0).astype(np.float32)
            print(f"paced {name} {seed} {h:.3f} last {acc(m):.4f} mean {acc(a):.4f}",flush=True)
            if h<0.75: res+=[(h,m,"last"),(h,a,"mean")]
            k+=1
    return res
def job(a):
    (h,model,which),skip,q,ridge=a; torch.set_num_threads(1)
    exp,u=setup(name,seed); net=TorchNetwork("cnn",784,10); fm=Tan(net,model,q,skip,seed); lines=[]
    S=[400,700,1000,1400]; hours=1.0
    sch={f"newton S{s}":make_scheme("coded-newton",dict(setup_deadline=float(s),hours=hours,excess=1.5)) for s in S}
    sch|={f"balanced S{s}":make_scheme("balanced",dict(setup_deadline=float(s))) for s in S}
    try: r,p=phase2(exp,u,fm,sch,ridge,hours)
    except Exception as e: return [f"{h:.2f} {which} skip{skip} q{fm.q} {ridge:g} failed {type(e).__name__} {str(e)[:200]}"]
    for l,(hh,facts) in r.items():
        m=[x for _,x in hh]; hh=[(t,x) for t,x in hh if x==x]
        def to(t):
            k=[a for a,x in hh if x>=t]; return f"{h+k[0]:.3f}" if k else "-"
        fin=[x for _,x in hh]
        lines.append(f"{name} {seed} t{h:.2f} {which} skip{skip} q{fm.q} ridge{ridge:g} {l}: start {fin[0]:.4f}@{h+hh[0][0]:.2f} end {fin[-1]:.4f}@{h+hh[-1][0]:.2f} max {max(fin):.4f} | 842 {to(.842)} 942 {to(.942)} 96 {to(.96)} 97 {to(.97)}")
    return lines
if __name__=="__main__":
    t0=time.time(); base=train(); print("trained",time.time()-t0,flush=True)
    jobs=[(b,sk,q,r) for b in base for sk,q in ((0,1000),(2,1000),(0,1400),(2,1569)) for r in ((1e-7,) if b[2]=="mean" else (1e-8,1e-7))]
    with Pool(int(os.environ.get("JOBS","16"))) as pool, open(f"{out}/scan-{name}-{seed}.txt","w") as f:
        for lines in pool.imap_unordered(job,jobs):
            print(*lines,sep="\n",file=f,flush=True); print(lines[0],f"{time.time()-t0:.0f}s",flush=True)
