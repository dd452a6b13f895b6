from torch import _C
from torch.cuda.streams import Stream

_pools = [0]


class CUDAGraph:
    def __init__(self):
        _pools[0] += 1
        self.pool_id = _pools[0]
        self.exec = None

    def capture_begin(self):
        device = _C._cuda_getDevice()
        _C._cuda_graphBegin(self.pool_id, _C._cuda_getCurrentStream(device), device)

    def capture_end(self):
        device = _C._cuda_getDevice()
        self.exec = _C._cuda_graphEnd(self.pool_id, _C._cuda_getCurrentStream(device), device)

    def replay(self):
        _C._cuda_graphLaunch(self.exec, _C._cuda_getCurrentStream(_C._cuda_getDevice()))

    def reset(self):
        if self.exec is not None:
            _C._cuda_graphReset(self.pool_id, self.exec, _C._cuda_getDevice())
            self.exec = None

    def __del__(self):
        self.reset()


class graph:
    def __init__(self, cuda_graph, pool=None, stream=None):
        self.cuda_graph = cuda_graph
        self.stream = stream if stream is not None else Stream()

    def __enter__(self):
        self.stream.__enter__()
        self.cuda_graph.capture_begin()

    def __exit__(self, *exc):
        self.cuda_graph.capture_end()
        self.stream.__exit__(*exc)
