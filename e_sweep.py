import torch, triton
from functools import partial
from deepinfer.bench import cases
from deepinfer.bench.measure import graph_us
from deepinfer.ops.mhc_boundary import triton as m
d=torch.device("cuda",0)
K=20480
w=m.pack(cases.hyper_weights(5120,d))
with torch.inference_mode():
    for T in (64,1024):
        news=[torch.randn((T,4,5120),device=d).to(torch.bfloat16) for _ in range(max(2,int(4e8/(T*40960))))]
        for tok in (64,128):
            for sl in (512,1024):
                for step,st,wp in ((64,3,4),(64,4,4),(128,2,4),(128,3,4),(64,4,8)):
                    if wp==8 and tok==64: continue
                    parts=torch.empty((K//sl,T,64),device=d)
                    f=[partial(m._project[(triton.cdiv(T,tok),K//sl)],n,w.fn,parts,T,K,tok,sl,step,num_warps=wp,num_stages=st,launch_pdl=True) for n in news]
                    print("project",T,tok,sl,step,st,wp,"%.1f"%graph_us(f)[0],flush=True)
        sl=512; parts=torch.randn((K//sl,T,64),device=d); sq=torch.rand(T,device=d)*K; a,b=torch.empty((2,T,4),device=d); c=torch.empty((T,4,4),device=d)
        for tok in (2,4,8,16):
            for wp in (1,2,4):
                f=partial(m._split[(triton.cdiv(T,tok),)],parts,sq,w.base,w.scale,a,b,c,T,1e-6,1e-6,K,K//sl,20,tok,num_warps=wp,launch_pdl=True)
                print("split",T,tok,wp,"%.1f"%graph_us([f])[0],flush=True)
