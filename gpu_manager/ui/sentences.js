// The service's own sentences in Chinese: why a pod waits, what would help, what a rule, a quota or an advice reports.
// It writes them in English, for the command line, Events and logs too; here each is taken apart by the pattern that it
// was written with. {m} to {p} stand for numbers, {1} to {4} for names, which stay, {x} for any text that stays, {a} to
// {d} for parts that have a pattern of their own, {e} for a name or such a part. What has no pattern stays English; tests
// hold this table against the code.
import { RULES } from "./rules.js";
import { language } from "./words.js";

const PATTERNS = [
  // What a pod waits for, or where it would go.
  ["waits, but not for cards: {a}", "在等待，但不是等卡：{a}"],
  ["waits: of {a}, {b}", "等待中：共 {a}，其中 {b}"],
  ["Of {a}: {b}", "共 {a}：{b}"],
  ["waits: the cluster has no node with cards", "等待中：集群没有带卡的节点"],
  ["waits: its claim {1} is not created yet; if that is refused, as by the quota, an Event of the pod says why (kubectl describe pod)", "等待中：它的 ResourceClaim {1} 尚未创建；若被拒绝（例如因配额），Pod 的事件会说明原因（kubectl describe pod）"],
  ["waits: no node has room for its extended resources ({a}) and for its claims ({b}). Only a node whose front is split gives cards in both ways", "等待中：没有节点既能容纳它的扩展资源（{a}）又能容纳它的 ResourceClaim（{b}）。只有混合模式的节点同时以两种方式分配卡"],
  ["waits: {e} is not in the file, and the cluster has none of that name in namespace {2} that may be given a card here", "等待中：文件中没有 {e}，集群的命名空间 {2} 中也没有可在此分配卡的同名对象"],
  ["waits: {a}: a card counts while no pod holds any part of it", "等待中：{a}：完全空闲的卡才计入"],
  ["waits: {a}", "等待中：{a}"],
  ["never runs: {a}", "永远无法运行：{a}"],
  ["would not be created: {a}", "不会被创建：{a}"],
  ["its claims would not be created: {a}", "它的 ResourceClaim 不会被创建：{a}"],
  ["asks for no part of a card: any node will do", "不请求卡：任何节点都可以"],
  ["asks for {n} {1}, which the scheduler counts by itself: {a}", "请求 {n} 个 {1}，由调度器自行计数：{a}"],
  ["asks for {n} {1}, which the scheduler counts by itself", "请求 {n} 个 {1}，由调度器自行计数"],
  ["asks for {1}, which none of our nodes offers: ask for {2} and {3}", "请求 {1}，没有节点提供它：请改为请求 {2} 和 {3}"],
  ["no node with our cards offers any under that name (--nvidia-resource)", "没有带卡的节点以该名称提供卡（--nvidia-resource）"],
  ["room now on {n} of {m} nodes: {a}", "现在 {m} 个节点中有 {n} 个有空间：{a}"],
  ["there is room now on {n} of {m} nodes: on {1} it would get {a}", "现在 {m} 个节点中有 {n} 个放得下：在 {1} 上将得到 {a}"],
  ["there is room now: on {1} it would get {a}", "现在放得下：在 {1} 上将得到 {a}"],
  ["there is room now on {n} of {a}: on {1} it would get {b}", "现在 {a}中有 {n} 个放得下：在 {1} 上将得到 {b}"],
  ["there is room now on {n} of {a}: on {1}, {b}", "现在 {a}中有 {n} 个放得下：在 {1} 上，{b}"],
  ["there is some on {a}", "在 {a} 上有空间"],
  ["extended resources: {a}", "扩展资源：{a}"],
  ["claims: {a}", "按 ResourceClaim：{a}"],
  ["Its scheduler {1} has not placed it yet: its Events say what else it needs (CPU, host memory, a taint, an affinity, a volume); if there are none, no such scheduler runs", "它的调度器 {1} 尚未放置它：Pod 的事件说明还缺什么（CPU、主机内存、污点、亲和性、卷）；若没有事件，则该调度器没有运行"],
  ["Smallest change: {a}", "最小改动：{a}"],
  ["What helps: {a}", "解决办法：{a}"],
  ["No change of its amounts helps", "改变请求量无济于事"],
  ["Change the pod as said", "按上述说明修改 Pod"],
  ["Make it anew, changed as said", "按上述说明修改后重新创建"],
  ["Node {1} is closed to smaller pods for it until {a}", "节点 {1} 为它而不接收更小的 Pod，直到{a}"],
  ["Not counted: {a}", "未计入：{a}"],
  ["It is of {a}", "它属于 {a}"],
  ["As it is now, no node would take it: {a}", "按它现在的写法，没有节点会接收它：{a}"],
  ["all {n} copies fit now: {a}", "全部 {n} 个副本现在都放得下：{a}"],
  ["{n} of {m} copies fit now; more were not tried", "{m} 个副本中现在放得下 {n} 个；未再尝试更多"],
  ["{n} of {m} copies fit now; the next {a}", "{m} 个副本中现在放得下 {n} 个；下一个{a}"],
  ["no node that it may go to has cards, and the host CPU, memory and pod slots left", "它可去的节点中，没有一个同时有卡以及剩余的主机 CPU、内存和 Pod 名额"],
  ["being worked out", "正在计算"],
  // Where a bound pod is.
  ["bound to node {1}, which grants it no part of a card", "已绑定到节点 {1}，但该节点没有给它任何卡"],
  ["bound to node {1}, which publishes no cards: kubectl vcuda doctor says why", "已绑定到节点 {1}，但该节点没有发布任何卡：kubectl vcuda doctor 会说明原因"],
  ["{a}, where no card has room for it", "{a}，但那里没有卡能容纳它"],
  ["{a} (by the node's rules: its annotation names no card with room for it)", "{a}（按节点规则推断：注解中没有写明有空间的卡）"],
  ["bound to node {1}: {a}", "已绑定到节点 {1}：{a}"],
  ["bound to node {1}", "已绑定到节点 {1}"],
  ["ended on node {1}, and holds nothing any more", "已在节点 {1} 上结束，不再占用任何资源"],
  ["{n} steps of the scheduler's search found no devices for the claims", "调度器搜索了 {n} 步，没有为这些 ResourceClaim 找到设备"],
  ["claim template {1}", "ResourceClaimTemplate {1}"],
  ["Kubernetes rounds {1} {n} of request {2} to {m}", "Kubernetes 将请求 {2} 的 {1} 从 {n} 取整为 {m}"],
  ["A claim counts from its creation, at the most that it may take", "ResourceClaim 自创建起计入，按它可能占用的最多计算"],
  ["A claim counts from its creation, at the most that it may take, under each model that its {x}", "ResourceClaim 自创建起计入，按它可能占用的最多计算，并计入每个可能的型号（{x}）"],
  ["claim {1}, request {2}: {a}", "ResourceClaim {1} 的请求 {2}：{a}"],
  ["its claims are allocated: {a}", "它的 ResourceClaim 已分配：{a}"],
  ["its claims are allocated", "它的 ResourceClaim 已分配"],
  ["claim {1} holds {a} on {2}", "ResourceClaim {1} 在 {2} 上占用 {a}"],
  ["looks at {a} by admin access, which holds nothing", "以管理访问查看 {a}，不占用资源"],
  ["a look at {a}", "查看 {a}"],
  ["a card not known here", "此处未知的卡"],
  ["not known here", "此处未知"],
  ["fits: {a}", "放得下：{a}"],
  ["would hold {a}", "将占用 {a}"],
  ["whole cards {x}", "整卡 {x}"],
  ["whole card {1}", "整卡 {1}"],
  ["{a} of each of cards {x} for {1}", "{1}：卡 {x} 各 {a}"],
  ["{a} of each of cards {x}", "卡 {x} 各 {a}"],
  ["{a} of card {n} for {1}", "{1}：卡 {n} 的 {a}"],
  ["{a} of cards {x} for {1}", "{1}：卡 {x} 的 {a}"],
  ["{a} of card {n}", "卡 {n} 的 {a}"],
  ["{a} of cards {x}", "卡 {x} 的 {a}"],
  ["card {n} of {1}", "{1} 的卡 {n}"],
  ["card {n} on {1}", "{1} 上的卡 {n}"],
  ["card {n}: {a}", "卡 {n}：{a}"],
  ["cards {x}: {a}", "卡 {x}：{a}"],
  ["Priority normal: {a} beside it has no protection from it", "普通优先级：旁边的 {a} 不受保护"],
  ["Priority normal: {a} beside it have no protection from it", "普通优先级：旁边的 {a} 不受保护"],
  ["Priority protected, but not from {a} beside it: best-effort tenants alone wait", "受保护，但不包括旁边的 {a}：只有尽力而为的租户会等待"],
  ["Priority protected: no other tenant is beside it", "受保护：旁边没有其他租户"],
  ["Priority protected: {a} beside it waits for it", "受保护：旁边的 {a} 会为它等待"],
  ["Priority protected: {a} beside it wait for it", "受保护：旁边的 {a} 会为它等待"],
  ["Priority best-effort: waits for {a}", "尽力而为：等待 {a}"],
  ["protected tenants; none is beside it", "受保护的租户；旁边没有"],
  ["Priority {1} counts in placement alone: the agent of the node makes no tenant wait (it is of an earlier release, or cannot)", "优先级 {1} 只用于放置：节点的代理不让任何租户等待（版本较旧，或不支持）"],
  ["A best-effort tenant beside it has run a kernel or graph of {n} s, and none is interrupted: a launch may wait that long", "旁边有尽力而为的租户运行过 {n} 秒的核函数或图，且不会被中断：一次启动可能等待这么久"],
  ["{a} beside it was made before the agent knew priorities and waits for nobody", "旁边的 {a} 创建于代理支持优先级之前，不为任何人等待"],
  ["{a} beside it were made before the agent knew priorities and wait for nobody", "旁边的 {a} 创建于代理支持优先级之前，不为任何人等待"],
  ["{n} best-effort tenant", "{n} 个尽力而为的租户"],
  ["{n} best-effort tenants", "{n} 个尽力而为的租户"],
  ["{n} normal tenant and {m} protected tenant", "{n} 个普通租户和 {m} 个受保护的租户"],
  ["{n} normal tenants and {m} protected tenants", "{n} 个普通租户和 {m} 个受保护的租户"],
  ["{n} normal tenant", "{n} 个普通租户"],
  ["{n} normal tenants", "{n} 个普通租户"],
  ["{n} protected tenant", "{n} 个受保护的租户"],
  ["{n} protected tenants", "{n} 个受保护的租户"],
  // What nodes do with it, counted.
  ["{n} would take it", "{n} 个可以接收"],
  ["{n} has no room now", "{n} 个现在没有空间"],
  ["{n} have no room now", "{n} 个现在没有空间"],
  ["{n} without room now", "{n} 个现在没有空间"],
  ["{n} keeps it off ({a})", "{n} 个拒绝它（{a}）"],
  ["{n} keep it off ({a})", "{n} 个拒绝它（{a}）"],
  ["{n} could not hold it even if empty", "{n} 个即使空着也放不下"],
  ["{n} is kept for a larger pod ({a})", "{n} 个留给更大的 Pod（{a}）"],
  ["{n} are kept for a larger pod ({a})", "{n} 个留给更大的 Pod（{a}）"],
  ["{n} is closed to it by quota", "{n} 个受配额限制"],
  ["{n} are closed to it by quota", "{n} 个受配额限制"],
  ["{n} refused this amount a moment ago", "{n} 个刚拒绝过这个请求量"],
  ["{n} has no cards for it ({a})", "{n} 个没有适合它的卡（{a}）"],
  ["{n} have no cards for it ({a})", "{n} 个没有适合它的卡（{a}）"],
  ["{n} has no cards for it", "{n} 个没有适合它的卡"],
  ["{n} have no cards for it", "{n} 个没有适合它的卡"],
  ["{n} without cards for claims", "{n} 个没有可按 ResourceClaim 分配的卡"],
  // What holds it apart from the nodes.
  ["held by scheduler {1}, which does not ask this service: its own events say why it waits", "由调度器 {1} 负责，它不询问本服务：等待原因见它的事件"],
  ["ask its scheduler, or set schedulerName to {1}", "询问它的调度器，或将 schedulerName 设为 {1}"],
  ["held by a volume: its scheduler says: {x}", "被卷阻挡：它的调度器说明：{x}"],
  ["see to its claims' volumes", "检查其 PersistentVolumeClaim 的卷"],
  ["held by the quota of its namespace: {a}", "受其命名空间的配额限制：{a}"],
  ["held by its gang: there is room for it alone, but {a}", "被其 Pod 组阻挡：单独放得下，但{a}"],
  ["gang {1} lacks {n} members and has room for less: {a}", "Pod 组 {1} 缺少 {n} 个成员，而空间不够：{a}"],
  ["{n} of the {m} members that gang {1} lacks have a place: {a}", "Pod 组 {1} 所缺的 {m} 个成员中 {n} 个有位置：{a}"],
  ["{1} has no place beside the others", "{1} 在其他成员旁边没有位置"],
  ["wait until there is room for all of them at once, or let its gang want less at the least", "等到整组同时有空间，或降低 Pod 组的最小成员数"],
  ["held by the scheduling gate {x}: no scheduler looks at it", "被调度门 {x} 阻挡：没有调度器处理它"],
  ["held by the scheduling gates {x}: no scheduler looks at it", "被调度门 {x} 阻挡：没有调度器处理它"],
  ["wait until who set it takes it off", "等设置者移除它"],
  ["wait until Kueue admits it: its ClusterQueue must cover {1} and {2}", "等 Kueue 准入：其 ClusterQueue 必须包含 {1} 和 {2}"],
  ["held by its own {1}: {x} of an older template holds the cards until this one is ready", "被自己的 {1} 阻挡：旧模板的 {x} 占着卡，直到新的就绪"],
  ["held by its own {1}: {x} of an older template hold the cards until this one is ready", "被自己的 {1} 阻挡：旧模板的 {x} 占着卡，直到新的就绪"],
  ["upgradeStrategy None, or {a}", "upgradeStrategy 设为 None，或{a}"],
  ["delete the older one: its controller ends it only once this one is ready", "删除旧的：控制器要等新的就绪才结束它"],
  ["set its strategy to Recreate", "将其策略设为 Recreate"],
  ["set the strategy Recreate, or rollingUpdate with maxSurge 0 and maxUnavailable 1", "将策略设为 Recreate，或 rollingUpdate（maxSurge 0、maxUnavailable 1）"],
  ["canary with maxSurge 0 and maxUnavailable 1", "使用 canary（maxSurge 0、maxUnavailable 1）"],
  ["{1}: its size is not known here, so each of its pods is judged alone", "{1}：不知道它的大小，因此逐个判断其 Pod"],
  ["{1}: {n} members are missing, more than {m}, so each of its pods is judged alone", "{1}：缺少 {n} 个成员，超过 {m} 个，因此逐个判断其 Pod"],
  ["{1}: {n} members of at least {m}, {a}", "{1}：{n} 个成员（至少 {m} 个），{a}"],
  ["{n} bound ({x})", "{n} 个已绑定（{x}）"],
  ["{n} bound", "{n} 个已绑定"],
  ["{n} with a place", "{n} 个已有位置"],
  // What would help.
  ["open node {1} to it: it has room, but {a}", "让节点 {1} 接收它：那里有空间，但{a}"],
  ["ask {1} of host CPU instead of {2} (then node {3} takes it)", "主机 CPU 改为请求 {1}，而不是 {2}（则节点 {3} 可以接收）"],
  ["node {1} takes it once {e} has left", "{e} 离开后，节点 {1} 可以接收它"],
  ["node {1} takes it once {e} have left", "{e} 离开后，节点 {1} 可以接收它"],
  ["wait for pods to end: every node that could hold it is {a}", "等其他 Pod 结束：每个放得下它的节点都{a}"],
  ["wait for pods to end", "等其他 Pod 结束"],
  ["wait for pods to end: no node whose cards have room for it has host CPU left", "等其他 Pod 结束：卡上有空间的节点都没有剩余的主机 CPU"],
  ["taken or {a}", "已被占用，或{a}"],
  ["taken", "已被占用"],
  ["kept for a larger pod", "留给更大的 Pod"],
  ["let the quota grow, or pods of the namespace end: {a}", "提高配额，或等该命名空间的 Pod 结束：{a}"],
  ["let the quota grow, or pods of the namespace end", "提高配额，或等该命名空间的 Pod 结束"],
  ["let the quota grow, and {a}: {b}", "提高配额，并{a}：{b}"],
  ["let the quota grow, and {a}", "提高配额，并{a}"],
  ["let the quota grow: {a}", "提高配额：{a}"],
  ["let the quota grow", "提高配额"],
  ["have the right granted, or pods of the namespace end: {a}", "申请该权利，或等该命名空间的 Pod 结束：{a}"],
  ["have the right granted, or pods of the namespace end", "申请该权利，或等该命名空间的 Pod 结束"],
  ["have the right granted, and {a}: {b}", "申请该权利，并{a}：{b}"],
  ["have the right granted, and {a}", "申请该权利，并{a}"],
  ["have the right granted", "申请该权利"],
  ["ask {a}, as {b}, and wait for them", "改为请求 {a}（{b}），并等待"],
  ["no node that it may go to gives one container more (the kubelet's policy {1})", "它可去的节点不会给一个容器更多（kubelet 策略 {1}）"],
  ["no node that it may go to has more", "它可去的节点没有更多"],
  ["the quota of its namespace grants no more", "其命名空间的配额不允许更多"],
  ["widen annotation {1}, for example by {2} (then node {3} takes it: {a})", "放宽注解 {1}，例如加上 {2}（则节点 {3} 可以接收：{a}）"],
  ["widen annotation {1} (then node {2} takes it: {a})", "放宽注解 {1}（则节点 {2} 可以接收：{a}）"],
  ["leave out annotation {1} (then node {2} takes it: {a})", "去掉注解 {1}（则节点 {2} 可以接收：{a}）"],
  ["ask {a} (then node {1} takes it)", "改为请求 {a}（则节点 {1} 可以接收）"],
  ["{a} instead of {b} for {1}", "{1} 用 {a} 代替 {b}"],
  // Why a node does not take it.
  ["has room for it, but {a}", "有空间，但{a}"],
  ["room is kept for {a}", "空间留给 {a}"],
  ["{1} is cordoned", "{1} 已停止调度"],
  ["is cordoned", "已停止调度"],
  ["{1} has the taint {2}, which the pod does not tolerate", "{1} 有污点 {2}，Pod 不容忍"],
  ["has the taint {1}, which the pod does not tolerate", "有污点 {1}，Pod 不容忍"],
  ["{1} lacks what the pod selects: {2}", "{1} 缺少 Pod 选择的标签：{2}"],
  ["lacks what the pod selects: {1}", "缺少 Pod 选择的标签：{1}"],
  ["{1} does not meet the pod's node affinity: {2}", "{1} 不满足 Pod 的节点亲和性：{2}"],
  ["{1} has less host CPU free than the {n} that the pod asks for", "{1} 空闲的主机 CPU 少于 Pod 请求的 {n}"],
  ["has less host CPU free than the {n} that the pod asks for", "空闲的主机 CPU 少于 Pod 请求的 {n}"],
  ["does not meet the pod's node affinity: {1}", "不满足 Pod 的节点亲和性：{1}"],
  ["{a} (and 1 more node)", "{a}（另有 1 个节点）"],
  ["{a} (and {n} more nodes)", "{a}（另有 {n} 个节点）"],
  ["{n} more reasons", "另有 {n} 个原因"],
  ["and {n} more reasons", "以及另外 {n} 个原因"],
  ["and {n} more nodes", "以及另外 {n} 个节点"],
  ["{x} and {n} more", "{x} 以及另外 {n} 个"],
  ["{n} more", "另外 {n} 个"],
  ["its agent refused this amount less than a minute ago: its books are ahead of what is seen", "其代理不到一分钟前拒绝过这个请求量：代理的账目比这里看到的更新"],
  ["not judged in time: the pod has many containers, and the nodes differ much; it is asked about again", "未能及时判断：Pod 的容器很多，节点差异很大；会再次询问"],
  ["no room on its cards even on the empty node for {a}", "即使节点空着，卡上也放不下 {a}"],
  ["no room on its cards for {a}", "卡上放不下 {a}"],
  ["kept for {e}, which asks for {n} cards and has waited since {1}: closed to pods that ask for fewer and have no higher priority until {b}", "留给 {e}，它请求 {n} 张卡，自 {1} 起等待：在此之前不接收请求更少且优先级不更高的 Pod：{b}"],
  ["it has its place, or its cards have been free for {n} minute", "它得到位置，或所需的卡空闲 {n} 分钟"],
  ["it has its place, or its cards have been free for {n} minutes", "它得到位置，或所需的卡空闲 {n} 分钟"],
  ["it has its place, or 1 more pod with cards has left its node", "它得到位置，或再有 1 个持有卡的 Pod 离开其节点"],
  ["it has its place, or {n} more pods with cards have left their nodes", "它得到位置，或再有 {n} 个持有卡的 Pod 离开其节点"],
  ["a pod of another namespace", "另一个命名空间的 Pod"],
  ["1 pod of another namespace", "另一个命名空间的 1 个 Pod"],
  ["{n} pods of other namespaces", "其他命名空间的 {n} 个 Pod"],
  ["1 of another namespace", "另一个命名空间的 1 个"],
  ["{n} of other namespaces", "其他命名空间的 {n} 个"],
  ["its creation", "创建时"],
  ["this node is not known here", "这里不认识这个节点"],
  ["no GPU device: this node is not known here yet", "没有 GPU 设备：尚不认识这个节点"],
  ["no GPU device", "没有 GPU 设备"],
  ["{1}: the node publishes no inventory of cards", "{1}：节点没有上报卡的清单"],
  ["its agent is starting or has left: pods wait until it serves again", "其代理正在启动或已离开：Pod 等它恢复服务"],
  ["its cards are given by ResourceClaims alone", "它的卡只按 ResourceClaim 分配"],
  ["its cards are in MIG mode: their instances are not given by claims", "它的卡处于 MIG 模式：其实例不按 ResourceClaim 分配"],
  ["its cards are not given by claims", "它的卡不按 ResourceClaim 分配"],
  ["its agent gives no parts of several cards ({1}): it is of an earlier release, and would take them for whole cards", "它的代理不能分配多张卡的等份（{1}）：版本较旧，会把它们当作整卡"],
  ["its memory unit is {1}, that of this cluster is {2}", "它的显存单位是 {1}，本集群的是 {2}"],
  ["left out ({1})", "略去（{1}）"],
  ["no device ids for it: {a} asked, {b} left. Pods that shrank keep theirs: {c} of ids for {d} booked. Make their templates smaller, or grow others", "没有可用的设备 ID：请求 {a}，剩余 {b}。缩小过的 Pod 保留其 ID：已分配 {d}，却占着 {c} 的 ID。请缩小它们的模板，或扩大其他 Pod"],
  ["the kubelet's NUMA policy {1} wants ids of {a} on {2}, and those of {n} cores are left there at most: {b}", "kubelet 的 NUMA 策略 {1} 要求 {2} 上有 {a} 的 ID，而那里最多剩 {n} 算力的 ID：{b}"],
  ["containers hold ids of other NUMA nodes than their cards'", "容器持有的 ID 与其卡不在同一 NUMA 节点"],
  ["others hold them", "被其他容器占用"],
  // Why a card does not take it.
  ["{a}: no card has room for {b}: {c}", "{a}：没有卡放得下 {b}：{c}"],
  ["{a}: {b} of each of {n} cards asked, {m} of {p} have room for that: {c}", "{a}：请求 {n} 张卡各 {b}，{p} 张中 {m} 张放得下：{c}"],
  ["{a}: {n} whole card asked, {m} of {p} idle and open: {b}", "{a}：请求 {n} 张整卡，{p} 张中 {m} 张空闲且开放：{b}"],
  ["{a}: {n} whole cards asked, {m} of {p} idle and open: {b}", "{a}：请求 {n} 张整卡，{p} 张中 {m} 张空闲且开放：{b}"],
  ["{a}: {n} whole cards asked, {m} of {p} idle and open; the kubelet's NUMA policy {1} lets it have {o} here at most: {b}", "{a}：请求 {n} 张整卡，{p} 张中 {m} 张空闲且开放；kubelet 的 NUMA 策略 {1} 在此最多允许 {o} 张：{b}"],
  ["{a}: {n} whole cards asked, {m} of {p} idle and open, but not on NUMA nodes that the kubelet's policy {1} lets it have together: {b}", "{a}：请求 {n} 张整卡，{p} 张中 {m} 张空闲且开放，但不在 kubelet 策略 {1} 允许一起使用的 NUMA 节点上：{b}"],
  ["container {1}", "容器 {1}"],
  ["the node has no card", "节点没有卡"],
  ["Would fit now: {a}", "现在放得下：{a}"],
  ["The most that is free is {a}, on card {n}", "最多空闲 {a}（卡 {n}）"],
  ["The largest part that is free now: {a} on {b}", "现在空闲的最大一份：{b} 上的 {a}"],
  ["Nothing is free here for this pod now", "现在没有可给这个 Pod 的空闲资源"],
  ["No card of this node is open to this pod", "这个节点没有对该 Pod 开放的卡"],
  ["No part of an open card is free now", "开放的卡现在没有空闲"],
  ["in MIG mode: no share of the card itself, only of its instances (agent.migInstances)", "MIG 模式：卡本身没有份额，只有它的实例有（agent.migInstances）"],
  ["unhealthy ({x})", "不健康（{x}）"],
  ["unhealthy", "不健康"],
  ["cordoned", "已封锁"],
  ["idle", "空闲"],
  ["given by ResourceClaims alone", "只按 ResourceClaim 分配"],
  ["given away whole as {1}", "整卡已作为 {1} 让出"],
  ["not in the books of this node", "不在这个节点的账目中"],
  ["given whole alone, ask for {n} cores: {x}", "只整卡分配，请求 {n} 算力：{x}"],
  ["not among the cards that the pod allows", "不在 Pod 允许的卡之中"],
  ["a MIG instance, given to pods that name its profile ({1}) or UUID ({2})", "MIG 实例，只分配给写明其规格（{1}）或 UUID（{2}）的 Pod"],
  ["a MIG instance, of which a container gets one, and one of this pod asks for several cards", "MIG 实例：一个容器只得到一个，而该 Pod 有容器请求多张卡"],
  ["model {1}, the pod allows {x}", "型号 {1}，Pod 只允许 {x}"],
  ["not idle, {a}", "未空闲，{a}"],
  ["no memory of its own to share: it is given whole, ask for {n} cores", "没有可共享的独立显存：只整卡分配，请求 {n} 算力"],
  ["selectors leave it out ({a})", "被选择器排除（{a}）"],
  ["closed: {a}", "已关闭：{a}"],
  ["{a} held by a pod that is gone and whose processes still run", "{a} 被已删除但进程仍在运行的 Pod 占用"],
  ["{a} held by pods that are gone and whose processes still run", "{a} 被已删除但进程仍在运行的 Pod 占用"],
  ["held by {a}", "占用者 {a}"],
  ["claim {1} ({a})", "ResourceClaim {1}（{a}）"],
  ["claim {1}", "ResourceClaim {1}"],
  // Amounts.
  ["{1} asked, {2} free ({3} held by processes of no pod)", "请求 {1}，空闲 {2}（{3} 被不属于任何 Pod 的进程占用）"],
  ["{n} cores asked, {1} free", "请求 {n} 算力，空闲 {1}"],
  ["{1} asked, {2} free", "请求 {1}，空闲 {2}"],
  ["{a} in equal parts of {n} cards", "{a}，平分到 {n} 张卡"],
  ["1 whole card", "1 张整卡"],
  ["{n} whole cards", "{n} 张整卡"],
  ["one whole card", "一张整卡"],
  ["every card of a node, whole", "一个节点的每张整卡"],
  ["{a} of every card", "每张卡的 {a}"],
  ["{n} cores, {e} of each of {m} cards", "{m} 张卡各 {n} 算力、{e}"],
  ["{n} cores, {e} of every card", "每张卡的 {n} 算力、{e}"],
  ["{a} of each of {n} cards", "{n} 张卡各 {a}"],
  ["{a} of one card", "一张卡的 {a}"],
  ["{n} cores, {e} of one card", "一张卡的 {n} 算力、{e}"],
  ["admin access, for which Kubernetes wants as much free, and takes nothing: {a}", "管理访问，Kubernetes 要求有同样多的空闲，但不占用：{a}"],
  ["all the memory", "全部显存"],
  ["all the cores", "全部算力"],
  ["1 node", "1 个节点"],
  ["{n} nodes", "{n} 个节点"],
  ["{n} of {m}", "{n} / {m}"],
  ["{a}, with node {1}, where it places an init container before", "{a}（含节点 {1}，此前的 init 容器放在那里）"],
  ["one NUMA node", "一个 NUMA 节点"],
  ["{n} NUMA nodes", "{n} 个 NUMA 节点"],
  ["{1}: {n} of {m} cards are empty, {a}", "{1}：{m} 张卡中 {n} 张空闲，{a}"],
  ["{1}: {n} of {m} cards are empty", "{1}：{m} 张卡中 {n} 张空闲"],
  ["{n} are given away as {1}", "{n} 张已作为 {1} 让出"],
  ["{n} are held in part", "{n} 张被部分占用"],
  ["{n} are closed", "{n} 张已关闭"],
  // Quota.
  ["ExceedsGPUQuota: namespace {1}: {a}", "ExceedsGPUQuota：命名空间 {1}：{a}"],
  ["held back by a quota", "受配额阻挡"],
  ["it may use pool {x}; the node is of pool {2}", "可用的池是 {x}；该节点属于池 {2}"],
  ["it may use pool {x}; the node is in no pool", "可用的池是 {x}；该节点不属于任何池"],
  ["its entry names pools ({x}) and no models, which closes every card to it: list models under \"quota\", \"*\" for all", "其配额写了池（{x}）而没有写型号，因此所有卡都对它关闭：请在 \"quota\" 下列出型号，\"*\" 表示全部"],
  ["model {1} is not among its models ({x})", "型号 {1} 不在其允许的型号中（{x}）"],
  ["protected shares of model {1} are not granted to it ({a}): an operator grants them in its quota (ConfigMap {2}), under \"protected\"", "未授予它型号 {1} 的受保护份额（{a}）：由管理员在其配额（ConfigMap {2}）的 \"protected\" 下授予"],
  ["protected shares are not granted to it (none are): an operator grants them in its quota (ConfigMap {1}), under \"protected\"", "未授予它受保护份额：由管理员在其配额（ConfigMap {1}）的 \"protected\" 下授予"],
  ["protected shares are not granted to it ({x}): an operator grants them in its quota (ConfigMap {1}), under \"protected\"", "未授予它受保护份额（{x}）：由管理员在其配额（ConfigMap {1}）的 \"protected\" 下授予"],
  ["none are", "没有授予任何型号"],
  ["{a}, {1} asked: {2} would still fit", "{a}，请求 {1}：还能容纳 {2}"],
  ["{n} card of all models protected, {1} used or being bound", "所有型号共 {n} 张受保护的卡，已用或正在绑定 {1}"],
  ["{n} cards of all models protected, {1} used or being bound", "所有型号共 {n} 张受保护的卡，已用或正在绑定 {1}"],
  ["{n} card of {1} protected, {2} used or being bound", "{1} 共 {n} 张受保护的卡，已用或正在绑定 {2}"],
  ["{n} cards of {1} protected, {2} used or being bound", "{1} 共 {n} 张受保护的卡，已用或正在绑定 {2}"],
  ["{n} card of all models, {1} used or being bound", "所有型号共 {n} 张卡，已用或正在绑定 {1}"],
  ["{n} cards of all models, {1} used or being bound", "所有型号共 {n} 张卡，已用或正在绑定 {1}"],
  ["{n} card of {1}, {2} used or being bound", "{1} 共 {n} 张卡，已用或正在绑定 {2}"],
  ["{n} cards of {1}, {2} used or being bound", "{1} 共 {n} 张卡，已用或正在绑定 {2}"],
  ["{1} of all models, {2} used or being bound", "所有型号共 {1}，已用或正在绑定 {2}"],
  ["{1} of {2}, {3} used or being bound", "{2} 共 {1}，已用或正在绑定 {3}"],
  ["{1} asks for {n} cores, and one container may have {m}", "{1} 请求 {n} 算力，而一个容器最多 {m}"],
  ["{1} asks for {n} MiB of a card, and one container may have {m} MiB", "{1} 请求 {n} MiB 显存，而一个容器最多 {m} MiB"],
  // Advice.
  ["it did not work in {a}: 1 core is enough, or end it", "{a}内没有工作：1 算力足够，或结束它"],
  ["it worked for {a}: too little to tell", "只工作了 {a}：不足以判断"],
  ["its limit holds it back: without it, it would use up to {n} cores", "受限额约束：若无限额，最多会用 {n} 算力"],
  ["it needs {n} cores so far, {a}", "目前需要 {n} 算力，{a}"],
  ["while it works it would use up to {n} cores without a limit", "工作时若无限额，最多会用 {n} 算力"],
  ["an allocation that needed {1} in all was refused, and the largest card has {2}: a fault of the program, or work for several cards", "一次共需 {1} 的分配被拒绝，而最大的卡只有 {2}：程序有误，或需要多张卡"],
  ["an allocation that needed {1} in all was refused", "一次共需 {1} 的分配被拒绝"],
  ["it held no memory of the card", "没有占用显存"],
  ["it took {1} of its {2} and nothing was refused: a program that keeps what it once took cannot be told from one that needs it", "占用了 {2} 中的 {1}，没有被拒绝：无法区分程序是一直保留显存，还是真的需要"],
  ["it still grows, to {1} by now: a leak, or work that has not its full size yet", "仍在增长，目前 {1}：可能泄漏，或工作尚未达到完整规模"],
  ["it took at most {1} so far, {a}", "目前最多占用 {1}，{a}"],
  ["it took {1}, and may take more: its greatest amounts differ too much to tell", "占用过 {1}，可能更多：峰值差异太大，无法判断"],
  ["it took at most {1} in {a}; {n} % more is advised", "{a}内最多占用 {1}；建议多 {n} %"],
  ["it took at most {1} in {a}; {n} % less is advised", "{a}内最多占用 {1}；建议少 {n} %"],
  ["it took at most {1} in {a}", "{a}内最多占用 {1}"],
  ["watched for {a}, too short to tell growth: a smaller size is advised after {b}", "观察了 {a}，不足以判断增长：{b}后才建议更小的规格"],
  ["watched for {a}: a smaller size is advised after {b}", "观察了 {a}：{b}后才建议更小的规格"],
  ["seen for {n} start: a smaller size is advised after {m}, or {a}", "见过 {n} 次启动：{m} 次或 {a}后才建议更小的规格"],
  ["seen for {n} starts: a smaller size is advised after {m}, or {a}", "见过 {n} 次启动：{m} 次或 {a}后才建议更小的规格"],
  ["{n} day", "{n} 天"], ["{n} days", "{n} 天"], ["{n} hour", "{n} 小时"], ["{n} hours", "{n} 小时"], ["{n} minute", "{n} 分钟"], ["{n} minutes", "{n} 分钟"], ["{n} seconds", "{n} 秒"],
  // Resize.
  ["container {1}: {a} on card {n}: the card takes nothing new ({b}); it keeps {c}", "容器 {1}：卡 {n} 上的 {a}：该卡不再接收（{b}）；保持 {c}"],
  ["container {1}: {a} on card {n} does not fit: it holds {b} and the card has {c} free, so at most {d}", "容器 {1}：卡 {n} 上放不下 {a}：它占用 {b}，卡空闲 {c}，因此最多 {d}"],
  ["not healthy", "不健康"],
  // A card's health.
  ["vanished: the driver no longer lists the card; reboot the node, or check its seat and power", "消失：驱动不再列出该卡；请重启节点，或检查插槽与供电"],
  ["the driver cannot be asked: {x}", "无法查询驱动：{x}"],
  // What the service answers instead.
  ["the manifest has no pod template where one belongs", "清单中应有 Pod 模板的位置没有模板"],
  ["it has no pod template where one belongs", "应有 Pod 模板的位置没有模板"],
  ["it is of namespace {1}, and only {2} is shown here", "它属于命名空间 {1}，而这里只显示 {2}"],
  ["{n} workloads in one file: at most {m} are judged", "一个文件中有 {n} 个工作负载：最多判断 {m} 个"],
  ["nodes and pods have not been listed yet: ask again in a few seconds", "尚未列出节点和 Pod：请几秒后重试"],
  ["too many questions at once: try again", "同时的请求太多：请重试"],
  ["too many explanations at once: try again", "同时的解释太多：请重试"],
  ["there is no pod {1}", "没有 Pod {1}"],
  ["this needs the right to {1} in all namespaces (or ask for one where ?namespace= is taken)", "这需要在所有命名空间 {1} 的权限（或用 ?namespace= 只看一个）"],
  ["this needs the right to {1} in namespace {2}", "这需要在命名空间 {2} 中 {1} 的权限"],
  ["no agent of node {1} is known: try again in a few seconds", "不知道节点 {1} 的代理：请几秒后重试"],
  ["the agent of node {1} does not answer: {x}", "节点 {1} 的代理没有应答：{x}"],
  ["the agent of node {1} does not tell of health: it is an older one", "节点 {1} 的代理版本较旧，不提供健康记录"],
  ["the agent of node {1} does not tell of one pod's advice: it is an older one", "节点 {1} 的代理版本较旧，不提供单个 Pod 的建议"],
  ["no node has a card {1}", "没有节点有卡 {1}"],
  ["no pod {1} is on a node", "没有 Pod {1} 在节点上"],
  ["there is no range {1}: ask for {x}", "没有时间范围 {1}：可用 {x}"],
  ["Prometheus is being asked by others: try again", "Prometheus 正在被其他人查询：请重试"],
  ["{n} cores, {1} free", "空闲 {n} 算力、{1}"],
  ["{n} cores", "{n} 算力"],
  ["{n} cores, {e}", "{n} 算力、{e}"],
  ["{1} free", "空闲 {1}"],
];

const MOST = 2000; // texts remembered
const STEPS = 4000; // readings tried of one sentence, however it was made; then it stays English
const SENTENCES = [[". What helps: ", "。解决办法："], [". Smallest change: ", "。最小改动："], [". ", "。"]];
const LISTS = [["; ", "；"], [" | ", " | "], [", ", "，"]];
const known = new Map();
let compiled = null;
let steps = 0;

// A sentence of the service in the reader's language.
export function local(text) {
  if (language() !== "zh" || !text) return text;
  if (known.size > MOST) known.clear();
  steps = STEPS;
  return translated(text);
}

function translated(text) {
  if (!known.has(text)) {
    const found = best(text);
    if (steps <= 0) return found; // not all was tried
    known.set(text, found);
  }
  return known.get(text);
}

function best(text) {
  return whole(text, "strict") || pieces(text, SENTENCES) || pieces(text, LISTS, true) || whole(text, "full") || pieces(text, LISTS) || whole(text, "part") || text;
}

// By one pattern, whose parts are all translated, unless `how` is "part", and hold no list, where it is "strict".
function whole(text, how) {
  compiled ||= [...PATTERNS, ...RULES].map(parsed);
  for (const pattern of compiled)
    for (const values of readings(pattern, text, how === "strict")) {
      const shown = {};
      const fits = Object.entries(values).every(([name, part]) => {
        shown[name] = /[a-e]/.test(name) ? translated(part) : part;
        return shown[name] !== part || !/[a-d]/.test(name) || how === "part" || !WORD.test(part);
      });
      if (fits) return pattern.words.replace(/\{(\w)\}/g, (_, name) => shown[name]);
    }
  return "";
}

// Piece by piece, where one of them at least, or each, has a pattern.
function pieces(text, separators, each = false) {
  for (const [separator, shown] of separators) {
    const parts = split(text, separator);
    const found = parts.length > 1 ? parts.map(translated) : parts;
    const done = (part, at) => part !== parts[at];
    if (each ? found.length > 1 && found.every(done) : found.some(done)) return found.join(shown);
  }
  return "";
}

// At each separator that stands neither in brackets nor in quotes.
function split(text, separator) {
  const found = [""];
  let depth = 0;
  let quoted = false;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === '"') quoted = !quoted;
    else if (!quoted) depth = Math.max(0, depth + (text[at] === "(") - (text[at] === ")"));
    const here = !quoted && !depth && text.startsWith(separator, at);
    if (here) {
      found.push("");
      at += separator.length - 1;
    } else found[found.length - 1] += text[at];
  }
  return found;
}

function parsed([english, words]) {
  const found = english.split(/\{(\w)\}/);
  return { texts: found.filter((_, at) => at % 2 === 0), names: found.filter((_, at) => at % 2), words };
}

// Every way in which a text can be read as a pattern: the values of its names.
function* readings(pattern, text, strict, at = pattern.texts[0].length, i = 0) {
  const { texts, names } = pattern;
  if (i === 0 && !(text.startsWith(texts[0]) && text.endsWith(texts.at(-1)))) return;
  if (i === names.length) {
    if (at === text.length) yield {};
    return;
  }
  const next = texts[i + 1];
  const last = i === names.length - 1;
  for (let end = last ? text.length - next.length : text.indexOf(next, at + 1); end > at && steps > 0; end = last ? -1 : text.indexOf(next, end + 1)) {
    steps -= 1;
    const value = text.slice(at, end);
    if (!allowed(names[i], value, strict)) continue;
    for (const rest of readings(pattern, text, strict, end + next.length, i + 1)) yield { ...rest, [names[i]]: value };
  }
}

const WORD = /[a-z]{2}/i;

// A number is one; a name is one word, an amount, or quoted; other parts are any text.
function allowed(name, value, strict) {
  if (/[m-p]/.test(name)) return /^\d[\d.]*$/.test(value);
  if (/\d/.test(name)) return /^"[^"]*"$/.test(value) || !/, |; |: |\. | \| | or /.test(value);
  return !strict || !/; |\. /.test(value);
}
