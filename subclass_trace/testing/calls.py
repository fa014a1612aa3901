"""The calls that models make, as data: what the sweep runs on small instances and on dense tensors.

A call is an expression, or statements that end in ``out = ...``, over the names of `OPERANDS` and
of torch. What a call is in eager mode (a view, a copy, a write) the dense program says. `KINDS`
gives what it does not: which rule is broken where the value is wrong.
"""

from __future__ import annotations

OPERANDS = {
    "x": "a wrapper of the shape (rows, columns)",
    "y": "another one: positive numbers, and another context where the factory has them",
    "p": "a dense tensor of the shape and dtype of x",
    "q": "a dense tensor of the shape of m",
    "m": "a wrapper of the shape (columns, rows)",
    "a": "a wrapper of three dimensions",
    "r": "a dense vector, as long as a row of x",
    "l": "a dense vector, as long as a column of x",
    "s": "a dense number",
    "c": "a bool mask of the shape of x",
    "i": "indices of rows",
    "j": "indices for gather",
}
#: in both orders, with wrappers, dense tensors and numbers on either side
ARITHMETIC = (
    "x + y", "x - y", "x * y", "x / y", "x + p", "x - p", "x * p", "x / p", "x + 2", "x - 2",
    "x * 2", "x * -1.5", "x / 2", "x ** 2", "y ** 0.5", "y ** y", "x // 2", "x % 2", "x + x",
    "x - x", "x * s", "x + s", "x + r", "x * r", "x / (r.abs() + 1)", "y.add(x)", "x.mul(y)",
    "torch.maximum(x, y)", "torch.minimum(x, p)", "torch.atan2(x, y)", "torch.fmod(x, y)",
    "torch.remainder(x, y)", "torch.pow(y, p)", "torch.hypot(x, y)", "torch.logaddexp(x, y)",
    "x.true_divide(y)", "torch.float_power(y, 2)", "x.float() * 2", "x + p.double()",
    "x * y.double()", "x + y.double()", "x - p.bfloat16()", "x * (p > 0)",
)  # fmt: skip
#: the same with the operands exchanged
EXCHANGED = (
    "y + x", "y - x", "y / x", "p + x", "p - x", "p * x", "p / x", "2 + x", "2 - x", "2 * x",
    "2 / y", "2 / x", "2 ** x", "s - x", "r - x", "r / y", "torch.sub(p, x)", "torch.div(p, y)",
    "torch.minimum(p, x)", "torch.pow(p.abs(), y)", "torch.rsub(x, 3)", "torch.rsub(x, y)",
    "torch.atan2(p, x)", "q @ x", "torch.mm(q, x)", "F.linear(x, p)", "m @ x",
)  # fmt: skip
#: keywords that change the value
KEYWORDS = (
    "torch.add(x, y, alpha=2)", "torch.add(x, p, alpha=3)", "torch.add(p, x, alpha=3)",
    "torch.sub(x, y, alpha=0.5)", "torch.add(x, 1, alpha=2)", "torch.addcmul(x, y, y, value=0.5)",
    "torch.addcdiv(x, x, y, value=2)", "torch.lerp(x, y, 0.25)", "x.div(2, rounding_mode='floor')",
    "x.div(y, rounding_mode='trunc')", "torch.addmm(s, x, q, beta=0.5, alpha=2)",
    "torch.addmm(s, p, m, beta=0.5, alpha=2)", "torch.addmm(s, q, x, beta=2, alpha=0.5)",
    "x.sum(1, keepdim=True)", "x.sum(dim=0, keepdim=True)", "x.mean(-1, keepdim=True)",
    "x.amax(0, keepdim=True)", "x.sum(dtype=torch.float64)", "x.mean(0, dtype=torch.float64)",
    "x.var(0, correction=0)", "x.std(unbiased=False)", "x.cumsum(0, dtype=torch.float64)",
    "x.clamp(min=0)", "x.clamp(max=1)", "x.clamp(min=p)", "x.round(decimals=1)",
    "F.gelu(x, approximate='tanh')", "F.leaky_relu(x, 0.2)", "F.elu(x, alpha=2.0)",
    "F.softplus(x, beta=2)", "F.hardtanh(x, -0.5, 0.5)",
    "F.layer_norm(x, x.shape[-1:], r, r, 0.1)", "F.normalize(x, dim=0)",
    "x.softmax(-1, dtype=torch.float64)", "torch.zeros_like(x, dtype=torch.float64)",
    "F.mse_loss(x, y, reduction='sum')", "torch.linalg.vector_norm(x, 1, dim=0)",
    "x.sort(descending=True)[0]", "x.topk(2, largest=False)[0]", "x.nan_to_num(nan=1.0)",
    "F.pad(x, (1, 1), value=3.0)", "F.cross_entropy(x, i, label_smoothing=0.1)",
    "torch.full_like(x, 2, dtype=torch.float64)", "x.clone(memory_format=torch.contiguous_format)",
    "x.t().clone(memory_format=torch.contiguous_format)", "x.add(other=y)",
    "torch.mul(input=x, other=y)", "torch.ones_like(x, memory_format=torch.preserve_format)",
    "x.contiguous(memory_format=torch.contiguous_format)",
)  # fmt: skip
POINTWISE = (
    "-x", "x.abs()", "x.exp()", "y.log()", "y.sqrt()", "y.rsqrt()", "x.square()", "x.sin()",
    "x.cos()", "x.tanh()", "x.sigmoid()", "x.relu()", "x.erf()", "x.floor()", "x.ceil()",
    "x.round()", "x.trunc()", "x.sign()", "x.sinh()", "x.asinh()", "y.reciprocal()", "x.exp2()",
    "x.reciprocal()", "x.expm1()", "y.log1p()", "y.log2()", "x.tan()", "x.atan()", "x.pow(3)",
    "x.neg()",
    "x.clamp(-1, 1)", "F.gelu(x)", "F.silu(x)", "F.mish(x)", "F.relu6(x)", "F.hardswish(x)",
    "F.logsigmoid(x)", "F.celu(x)", "F.softsign(x)", "F.tanhshrink(x)", "F.hardsigmoid(x)",
    "F.selu(x)", "x.frac()", "x.clamp_min(0)", "x.positive()", "x.xlogy(y)", "y.abs()", "y.relu()",
    "y.clamp(min=0)", "x.isnan()", "x.isfinite()", "x.signbit()", "x.logical_not()", "x > y",
    "x > p", "p > x", "x > 1", "1 < x", "x == y", "x == x", "x != 0", "x >= y", "x <= 0", "x < p",
    "torch.isclose(x, y)", "torch.equal(x, x)", "torch.equal(x, y)", "torch.allclose(x, x)",
    "(x > 0).any()", "(x < 0).all()", "torch.where(c, x, y)", "torch.where(c, y, x)",
    "torch.where(c, x, 0.0)", "torch.where(c, p, x)", "torch.where(x > 0, x, p)",
    "x.masked_fill(c, 5.0)", "x.masked_fill(c, s)", "x.tril()", "x.triu()", "x.triu(1)",
)  # fmt: skip
#: on views
VIEWED = (
    "-x.t()", "x.t() + m", "x.t() + q", "x.t() * 2", "x.t().exp()", "x.t().abs()", "x.t().sum(0)",
    "x[:, 1:] * 2", "x[1:] + p[1:]", "x[1:] + y[1:]", "x[:, 1:].sum()", "x[1:].relu()",
    "x.t() > 0", "F.linear(q, x.t())", "x[1] * r", "x[:, 1].sum()",
)  # fmt: skip
REDUCTIONS = (
    "x.sum()", "x.sum(0)", "x.sum(1)", "x.sum(-1)", "x.sum((0, 1))", "x.mean()", "x.mean(0)",
    "x.mean(-1)", "x.amax()", "x.amax(-1)", "x.amin(0)", "x.max()", "x.min()", "x.max(-1)[0]",
    "x.min(0)[0]", "x.max(0).indices", "x.argmax()", "x.argmax(-1)", "x.argmin(0)", "x.prod()",
    "x.prod(-1)", "x.var()", "x.var(-1)", "x.std()", "x.std(0)", "x.norm()", "x.norm(dim=-1)",
    "torch.linalg.vector_norm(x)", "x.logsumexp(-1)", "x.cumsum(0)", "x.cumsum(-1)",
    "x.cumprod(-1)", "x.median()", "x.any()", "x.all()", "x.count_nonzero()", "x.sort(-1)[0]",
    "x.argsort(-1)", "x.topk(2, -1)[0]", "x.sum().item()", "float(x.sum())", "x.max().item()",
    "bool(x.sum() > 1000)", "len(x)", "x.aminmax()", "torch.std_mean(x, 0)", "x.logcumsumexp(-1)",
    "x.diff()", "torch.trace(x)",
)  # fmt: skip
#: what a layer does with a weight or an activation
LAYERS = (
    "x @ q", "x @ m", "x @ r", "l @ x", "torch.mm(x, q)", "x.matmul(q)", "torch.mv(x, r)",
    "x @ y.t()", "x.t() @ y", "p @ x.t()", "F.linear(p, x)", "F.linear(p, x, l)", "F.linear(x, y)",
    "F.linear(p[None], x)", "F.linear(p[0], x)", "p[None] @ m", "torch.addmm(s, x, q)",
    "torch.addmm(s, p, m)", "torch.addmm(s, q, x)", "torch.bmm(x[None], q[None])",
    "torch.bmm(p[None], m[None])", "torch.baddbmm(s, x[None], q[None])",
    "torch.einsum('ij,jk->ik', x, q)", "torch.einsum('ij,ij->i', x, y)",
    "torch.dot(x.flatten(), y.flatten())", "torch.tensordot(x, q, 1)", "F.embedding(i, x)",
    "F.embedding(i[None], x)", "F.embedding_bag(i[None], x)", "F.conv1d(p[None], x[None])",
    "F.conv1d(x[None], p[None])", "F.bilinear(p, p, x[None])", "torch.outer(x[0], r)",
    "x.addr(l, r)", "x.softmax(-1)", "x.softmax(0)", "F.softmax(x, dim=-1)", "x.log_softmax(-1)",
    "F.layer_norm(x, x.shape[-1:])", "F.layer_norm(x, x.shape)", "F.rms_norm(x, x.shape[-1:])",
    "F.group_norm(x, 1)", "F.batch_norm(x, None, None, training=True)",
    "F.cosine_similarity(x, y)", "F.normalize(x)", "F.mse_loss(x, y)", "F.mse_loss(x, p)",
    "F.mse_loss(p, x)", "F.l1_loss(x, y)", "F.smooth_l1_loss(x, p)", "F.huber_loss(x, p)",
    "F.cross_entropy(x, i)", "F.nll_loss(x, i)", "F.cross_entropy(p, x.softmax(-1))",
    "F.binary_cross_entropy_with_logits(x, p.sigmoid())",
    "F.kl_div(x, p.softmax(-1), reduction='sum')",
    "F.scaled_dot_product_attention(x[None], y[None], y[None])",
    "F.scaled_dot_product_attention(p[None], x[None], x[None])",
    "F.scaled_dot_product_attention(x[None], p[None], p[None], is_causal=True)",
    "F.dropout(x, 0.5, training=False)", "F.max_pool1d(x[None], 2)", "F.avg_pool1d(x[None], 2)",
    "F.glu(m, 0)", "torch.cdist(x, y)", "F.interpolate(x[None], 4)", "a + a", "a.sum(1)",
    "a.transpose(1, 2)", "a @ a.transpose(-1, -2)", "a[:, 1]", "a.softmax(1)",
    "a.permute(2, 0, 1)",
)  # fmt: skip
VIEWS = (
    "x[0]", "x[-1]", "x[1:]", "x[:1]", "x[:-1]", "x[:, 1:]", "x[:, :2]", "x[:, 1]", "x[..., -1]",
    "x[:, ::2]", "x[::2]", "x[None]", "x[0, 1]", "x[1, -1]", "x[1:][0]", "x[1:, 1:]",
    "x.select(0, 1)", "x.select(-1, 0)", "x.narrow(0, 1, 1)", "x.narrow(-1, 1, 2)", "x.t()", "x.T",
    "x.mT", "x.transpose(0, 1)", "x.transpose(-1, -2)", "x.permute(1, 0)", "x.swapaxes(0, 1)",
    "x.view(-1)", "x.view(x.shape)", "x.view(x.shape[::-1])", "x.reshape(-1)",
    "x.reshape(x.shape[::-1])", "x.flatten()", "x.unsqueeze(0)", "x.unsqueeze(-1)",
    "x.unsqueeze(1)", "x[None].squeeze(0)", "x.squeeze()", "x.expand(2, *x.shape)",
    "x[:1].expand_as(x)", "x.movedim(0, 1)", "x.unflatten(0, (1, -1))", "x.view_as(p)",
    "x.diagonal()", "x.split(1)", "x.split(2, -1)", "x.split([1, len(x) - 1])", "x.chunk(2)",
    "x.chunk(2, -1)", "x.unbind()", "x.unbind(-1)", "x.tensor_split(2)", "x.unfold(0, 1, 1)",
    "list(x)", "x.t().t()", "x.t()[1:]", "x[1:].t()", "x.ravel()", "x.requires_grad_(False)",
    "x.view(1, *x.shape)",
)  # fmt: skip
#: views and copies whose strides compilers compute on their own
STRIDED = (
    "x.t()", "x.transpose(0, 1)", "x.permute(1, 0)", "x.clone()", "x.t().clone()", "x.unsqueeze(0)",
    "x.detach()", "x[1:]",
)  # fmt: skip
#: copies whose strides are asked for
LAID_OUT = ("x.t().clone(memory_format=torch.contiguous_format)",)
#: results that torch may give as a view or as a copy
EITHER = (
    "reshape", "flatten", "contiguous(", "ravel", "to(", "float()", "double()", "half()",
    "bfloat16()", "cpu()", "type(", "type_as", "positive", "requires_grad_", "Parameter",
    "dropout", "tensor_split",
)  # fmt: skip
COPIES = (
    "x[i]", "x[[1, 0]]", "x[:, i]", "x[c]", "x.index_select(0, i)", "x.index_select(-1, i)",
    "x.gather(1, j)", "x.take(i)", "x.repeat(2, 1)", "x.tile(2)", "x.flip(0)", "x.flip(-1)",
    "x.roll(1, 0)", "x.roll(1, -1)", "x.roll(1)", "x.repeat_interleave(2, 0)", "torch.cat([x, y])",
    "torch.cat([x, p])", "torch.cat([p, x])", "torch.cat([x, y], 1)", "torch.cat([p, x], -1)",
    "torch.cat([x])", "torch.stack([x, y])", "torch.stack([x, p])", "torch.stack([p, x], -1)",
    "torch.hstack([x, y])", "torch.vstack([x, y])", "F.pad(x, (1, 0))", "x.masked_select(c)",
    "x.nonzero()", "x.scatter(1, j, 5.0)", "x.scatter_add(1, j, y)", "x.index_add(0, i, y)",
    "x.index_fill(0, i, 1.0)", "x.index_put((i,), y)", "torch.select_scatter(x, r, 0, 1)",
    "torch.slice_scatter(x, p[:1], 0, 0, 1)", "x.new_zeros(3)", "x.new_ones(2, 2)",
    "x.new_full((2,), 3.0)", "torch.zeros_like(x)", "torch.ones_like(x)", "torch.full_like(x, 2)",
    "x.t().contiguous()", "x.contiguous()", "torch.broadcast_to(x, (2, *x.shape))",
    "torch.rot90(x)", "torch._foreach_add([x, y], 1)", "torch._foreach_mul([x, y], [y, x])",
    "torch._foreach_neg([x])", "torch._foreach_norm([x, y])", "torch._foreach_sqrt([y])",
    "torch.block_diag(x, y)",
)  # fmt: skip
DETACHED = ("x.detach()", "x.data", "y.detach()")
CLONES = ("x.clone()", "y.clone()", "torch.clone(x)", "x.t().clone()", "x[1:].clone()")
CONVERSIONS = (
    "x.to(torch.float64)", "x.to(torch.bfloat16)", "x.to(torch.float32)", "x.double()", "x.half()",
    "x.float()", "x.bfloat16()", "x.to(x.dtype)", "x.to(p)", "x.to(p.double())", "x.to('cpu')",
    "x.to(x.dtype, copy=True)", "x.cpu()", "x.type(torch.float64)", "x.type_as(p.double())",
    "x.int()", "x.bool()", "x.long()", "x.to(dtype=torch.float64)", "x.to('cpu', torch.float64)",
)  # fmt: skip
WRITES = (
    "x.add_(y)", "x.add_(p)", "x.add_(1)", "x.sub_(y)", "x.sub_(p)", "x.sub_(1)", "x.mul_(2)",
    "x.mul_(y)", "x.mul_(p)", "x.div_(2)", "x.div_(y)", "x += y", "x -= p", "x *= 2", "x /= 2",
    "x **= 2", "x.neg_()", "x.abs_()", "x.zero_()", "x.fill_(3)", "x.relu_()", "x.exp_()",
    "y.sqrt_()", "x.clamp_(0, 1)", "x.clamp_min_(0)", "x.sigmoid_()", "x.tanh_()", "x.square_()",
    "x.pow_(2)", "x.floor_()", "p.add_(x)", "p.mul_(x)", "p.sub_(x)", "p[0].add_(x[0])",
    "x.masked_fill_(c, 0)", "x.lerp_(y, 0.5)", "x[0] = 1.0", "x[0] = r", "x[1] = y[0]",
    "x[:, 1:] = 0", "x[c] = 0", "x[i] = y", "x.index_add_(0, i, y)", "x.scatter_(1, j, 5.0)",
    "x.index_fill_(0, i, 1.0)", "x.index_copy_(0, i, y)", "torch.add(y, 1, out=x)",
    "torch.mul(y, 2, out=x)", "torch.sub(y, 1, out=x)", "torch.neg(x, out=p)",
    "torch.add(x, y, out=p)", "torch.mm(x, q, out=torch.empty(0, dtype=p.dtype))",
    "torch._foreach_add_([x], 1)", "torch._foreach_mul_([x, y], 2)",
    "torch._foreach_add_([x], [y])", "torch._foreach_sub_([x], [p])", "torch._foreach_neg_([x])",
    "torch._foreach_zero_([x, y])", "torch.ops.aten.add_.Tensor(x, 1)",
    "torch.ops.aten.mul_.Tensor(x, 2)", "torch.ops.aten.sub_.Tensor(x, y)",
    "torch.ops.aten.zero_.default(x)", "torch.ops.aten.neg_.default(x)",
    "torch.ops.aten.copy_.default(x, y)", "F.relu(x, inplace=True)",
    "F.dropout(x, 0.5, training=False, inplace=True)", "x.tril_()", "x.cumsum_(0)",
)  # fmt: skip
#: writes through views
VIEW_WRITES = (
    "x[:1].mul_(0.5)", "x[1:].neg_()", "x[1:].copy_(r)", "x.t().add_(1)", "x.view(-1).mul_(2)",
    "x.unbind()[1].mul_(0.25)", "x.split(1)[1].zero_()", "x[1:].fill_(1)", "x.chunk(2)[1].neg_()",
    "x[:, 1].mul_(0.5)", "x.data.add_(1)", "x.detach().mul_(2)",
)  # fmt: skip
#: writes with a keyword that counts
KEYWORD_WRITES = (
    "x.add_(y, alpha=2)", "x.add_(p, alpha=-0.5)", "x.sub_(y, alpha=3)",
    "x.addcmul_(y, y, value=0.5)", "x.addcdiv_(x, y, value=-2)",
    "torch._foreach_add_([x], [y], alpha=2)", "torch._foreach_addcmul_([x], [y], [y], value=2)",
    "x.div_(2, rounding_mode='floor')", "p.add_(x, alpha=2)", "x.clamp_(max=1)",
    "torch.add(y, y, alpha=2, out=x)",
)  # fmt: skip
#: the value of another tensor is taken over
TAKES_OVER = (
    "x.copy_(y)", "x.copy_(p)", "p.copy_(x)", "x.copy_(r)", "x.copy_(s)", "x[:1].copy_(y[:1])",
    "x.copy_(p.double())", "torch._foreach_copy_([x], [y])",
)  # fmt: skip
#: what training scripts do: modules, files, optimizers
STEP = "w = nn.Parameter(x); w.grad = {0}; {1}.step(); out = w.detach()"
OPTIMIZERS = (
    *(STEP.format(g, "torch.optim.SGD([w], 0.5)") for g in ("p", "y")),
    STEP.format("p", "torch.optim.SGD([w], 0.5, foreach=True)"),
    STEP.format("p", "torch.optim.SGD([w], 0.5, momentum=0.9, weight_decay=0.1)"),
    STEP.format("p", "torch.optim.Adam([w], 0.5)"),
    STEP.format("y", "torch.optim.AdamW([w], 0.5, foreach=True)"),
    "w = nn.Parameter(x); w.grad = p; nn.utils.clip_grad_norm_([w], 0.1); out = w.grad",
    "w = nn.Parameter(x); (w * p).sum().backward(); "
    "torch.optim.SGD([w], 0.5).step(); out = w.detach()",
    "w = nn.Parameter(x); F.linear(p, w).sum().backward(); "
    "torch.optim.SGD([w], 0.5).step(); out = w.detach()",
    "w = nn.Parameter(x); w.grad = p; o = torch.optim.SGD([w], 0.5); "
    "o.step(); o.zero_grad(); out = [w.detach(), w.grad]",
)
MODULE = (
    "n, o = nn.Module(), nn.Module(); n.w, o.w = nn.Parameter(x, False), nn.Parameter({0}, False); "
)
_SWAP = "torch.__future__.set_swap_module_params_on_conversion({0})"
LOADS = (
    MODULE.format("y") + "o.load_state_dict(n.state_dict()); out = o.w",
    MODULE.format("y") + "o.load_state_dict(n.state_dict(), assign=True); out = o.w",
    MODULE.format("y") + "o.load_state_dict({'w': p}); out = o.w",
    MODULE.format("p") + "o.load_state_dict(n.state_dict()); out = o.w",
)
SWAPPED_LOADS = (
    f"{_SWAP.format(True)}\ntry: "
    + MODULE.format("y")
    + f"o.load_state_dict(n.state_dict())\nfinally: {_SWAP.format(False)}\nout = o.w",
    "torch.utils.swap_tensors(x, y); out = [x, y]",
)
CONVERTED = (
    "n = nn.Module(); n.w = nn.Parameter(x); out = n.to(torch.float64).w.detach()",
    "n = nn.Module(); n.w = nn.Parameter(x); out = n.bfloat16().w.detach()",
)  # fmt: skip
DEEPCOPIES = (
    "copy.deepcopy(x)", "copy.deepcopy(y)", "copy.deepcopy(nn.Parameter(x, False))",
    "copy.deepcopy({'a': [x]})['a'][0]",
)  # fmt: skip
PICKLES = (
    "pickle.loads(pickle.dumps(x))", "pickle.loads(pickle.dumps(y))",
    "pickle.loads(pickle.dumps(nn.Parameter(x, False)))",
)  # fmt: skip
SAVES = ("f = io.BytesIO(); torch.save(x, f); f.seek(0); out = torch.load(f, weights_only=False)",)
OFFSETS = ("copy.deepcopy(x[1:])", "pickle.loads(pickle.dumps(x[1:]))")
PARAMETERS = ("nn.Parameter(x, False)", "nn.Parameter(x).detach()")
#: values are of chance, or of nobody: only what the result looks like counts
DRAWN = (
    "torch.rand_like(x)", "torch.randn_like(x)", "torch.empty_like(x)", "x.new_empty(2)",
    "F.dropout(x, 0.5)", "torch.bernoulli(x * 0)", "x.new_empty_strided(x.shape, x.stride())",
    "x.to('meta')", "x.uniform_()", "x.normal_()",
)  # fmt: skip

#: calls that are made on every other size, dtype and layout as well
CORE = (
    "x + y", "x - y", "x * y", "x / y", "x * 2", "2 - x", "x + p", "p * x", "x ** 2", "-x",
    "x.abs()", "x.exp()", "x.relu()", "x > y", "x == y", "x.sum()", "x.sum(-1)", "x.mean(0)",
    "x.amax(-1)", "x.softmax(-1)", "F.linear(p, x)", "x @ q", "F.layer_norm(x, x.shape[-1:])",
    "x.t()", "x[1:]", "x[0]", "x.view(-1)", "x.unbind()", "torch.cat([x, y])", "x[i]", "x.clone()",
    "x.index_select(0, i)", "x.flip(0)", "x.cumsum(0)", "x.sum(0)",
    "x.detach()", "x.to(torch.float64)", "x.add_(y)", "x.mul_(2)", "x.copy_(y)", "x.zero_()",
    "torch.where(c, x, y)", "F.embedding(i, x)",
)  # fmt: skip

#: calls by the rule that a wrong value breaks
KINDS: dict[str, tuple[str, ...]] = {
    "ST501": DETACHED,
    "ST310": (*ARITHMETIC, *POINTWISE, *VIEWED, *REDUCTIONS, *LAYERS, *COPIES),
    "ST315": EXCHANGED,
    "ST314": (*KEYWORDS, *KEYWORD_WRITES),
    "ST332": VIEWS,
    "ST502": CLONES,
    "ST503": CONVERSIONS,
    "ST514": CONVERTED,
    "ST326": WRITES,
    "ST324": VIEW_WRITES,
    "ST505": TAKES_OVER,
    "ST513": OPTIMIZERS,
    "ST511": LOADS,
    "ST517": SWAPPED_LOADS,
    "ST506": DEEPCOPIES,
    "ST507": (*PICKLES, *SAVES),
    "ST510": PARAMETERS,
    "ST515": OFFSETS,
}

#: calls of which one must run, by what the class is used for; of the last ones each
NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "weight": (
        ("F.linear(p, x)", "F.embedding(i, x)", "F.conv1d(p[None], x[None])"),
        *((text,) for text in ("x.detach()", PARAMETERS[0], DEEPCOPIES[0], LOADS[1], SAVES[0])),
    ),
    "parameter": (
        ("F.linear(p, x)", "F.embedding(i, x)", "x @ q", "x * p", "p @ x.t()"),
        *((text,) for text in ("x.detach()", PARAMETERS[0], DEEPCOPIES[0], LOADS[0], LOADS[1])),
        *((text,) for text in (SAVES[0], "torch.zeros_like(x)", *OPTIMIZERS[::2][:2])),
        ("x.add_(p, alpha=-0.5)",),
    ),
    "activation": (
        ("F.linear(x, p)", "x @ q"),
        ("F.gelu(x)", "x.relu()"),
        ("x.view(-1)", "x.reshape(-1)"),
        ("x.t()", "x.transpose(0, 1)"),
        *((text,) for text in ("x + y", "x * y", "x * 2", "x.sum()", "x.softmax(-1)", "x[1:]")),
        *((text,) for text in ("x.detach()", "x.clone()", "torch.cat([x, y])")),
    ),
    "input": (
        ("x[i]", "x.index_select(0, i)"),
        ("F.linear(x, p)", "x @ q", "x + p", "x * 2"),
        *((text,) for text in ("x.detach()", "x.clone()", "x.to('cpu')", "x[1:]")),
    ),
}
