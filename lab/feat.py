import numpy as np, torch, time
from codedfedl.learning.torch_network import TorchNetwork
from codedfedl.learning.module_function import ModuleFunction
def tangent(net, model, X, a, skip=0):
    """hidden, body grads (k,P)"""
    f = net._function
    flat = torch.from_numpy(np.asarray(model))
    parts = [p.detach() for p in f.split(flat)]
    W,b = parts[-2],parts[-1]
    hid=[];G=[]
    fm=ModuleFunction(f.module,net.inputs)
    lay=f.layers
    A=torch.from_numpy(a.astype(np.float32))
    for i in range(0,len(X),256):
        x=torch.from_numpy(X[i:i+256]); m=len(x)
        body=[p[None].expand(m,*p.shape).clone().requires_grad_(j>=skip) for j,p in enumerate(parts[:-2])]
        from codedfedl.learning.stacked import stacked_outputs
        h=stacked_outputs(lay[:-1],body,x[None])[0]
        s=(h@(W.T@A)).sum()
        g=torch.autograd.grad(s,body[skip:])
        hid.append(h.detach().numpy()); G.append(torch.cat([q.flatten(1) for q in g],1).numpy())
    return np.concatenate(hid),np.concatenate(G)
def sketch(G,m,rng):
    P=G.shape[1]
    if m>=P: return G
    b=rng.permutation(np.arange(P)%m); s=rng.choice([-1.,1.],P).astype(np.float32)
    S=np.zeros((P,m),np.float32); S[np.arange(P),b]=s
    return G@S
