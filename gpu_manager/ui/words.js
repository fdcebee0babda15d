// The console's words in two languages. The English text is the key; {0}, {1} … stand for values.
// Sentences of the service (why a pod waits, an XID) come as they are, in English.

const ZH = {
  "Loading …": "正在加载…",
  "Nothing to show: {0}": "没有可显示的内容：{0}",
  "Not live, these figures are out of date: {0}": "非实时，以下数据已过期：{0}",
  "Not live: the agent answers, but does not sample.": "非实时：代理有应答，但没有采样。",
  "Not live: the API server does not answer the admission service.": "非实时：API server 没有应答准入服务。",
  "Live, refreshed every 2 seconds.": "实时，每 2 秒刷新。",
  "Paused.": "已暂停。",
  "no answer within {0} seconds": "{0} 秒内没有应答",
  "the server answered {0}": "服务器返回 {0}",
  "Figures of {0} s ago.": "{0} 秒前的数据。",
  "Usage at most {0} s older.": "使用量数据最多再早 {0} 秒。",
  "No usage from {0}.": "没有使用量数据：{0}。",
  "Skip to the content": "跳到正文",
  "Views": "视图",
  "Overview": "总览",
  "Waiting": "等待中",
  "Quota": "配额",
  "What if": "假设",
  "What if this were applied?": "如果应用这个清单会怎样？",
  "Manifests in YAML or JSON: paste them, or drop a file here": "YAML 或 JSON 清单：粘贴，或把文件拖到这里",
  "Judge": "判断",
  "Nothing is created. Each pod is judged alone, against the cluster as it is now; of several copies one is judged.":
    "不会创建任何对象。每个 Pod 单独与集群当前状态比较；多个副本只判断其中一个。",
  "No object of these runs pods.": "这些对象都不运行 Pod。",
  "{0} copies": "{0} 个副本",
  "Search": "搜索",
  "Search: {0}": "搜索：{0}",
  "Search nodes, cards, pods ( / )": "搜索节点、卡、Pod（/）",
  "Nothing that is shown here has these words.": "这里显示的内容中没有这些词。",
  "Pause": "暂停",
  "Resume": "继续",
  "Token": "令牌",
  "Namespace": "命名空间",
  "namespace {0}": "命名空间 {0}",
  "all": "全部",
  "Show": "显示",
  "Who may get pods in a namespace sees that one; who may get them in all, everything. A token is kept in this tab only:":
    "可以读取某个命名空间 Pod 的用户能看到该命名空间；可以读取全部的用户能看到全部。令牌只保存在此标签页中：",
  "{0} nodes": "{0} 个节点",
  "{0}, the fullest of {1}": "{0}（{1} 个中最满的）",
  "Total": "合计",
  "Nodes": "节点",
  "Cards": "卡",
  "Pods": "Pod",
  "Containers": "容器",
  "Not usable": "不可用",
  "Cores booked": "已分配算力",
  "Cores used": "已用算力",
  "Memory booked": "已分配显存",
  "Memory used": "已用显存",
  "Booked cores in use": "已分配算力的使用率",
  "Fragmentation": "碎片率",
  "Health": "健康状态",
  "Pods waiting": "等待中的 Pod",
  "{0} of {1}": "{0} / {1}",
  "{0} of {1} booked": "已分配 {0} / {1}",
  "Needs a person first": "需要先处理",
  "Nothing: all cards are usable, and no pod is stuck.": "没有：所有卡可用，也没有卡住的 Pod。",
  "Card {0} of {1} is unhealthy": "{1} 的卡 {0} 不健康",
  "Node {0} takes no pods": "节点 {0} 不接收 Pod",
  "A deleted pod's processes still run on card {0} of {1}": "{1} 的卡 {0} 上仍有已删除 Pod 的进程",
  "Pod {0} can never run as it is": "Pod {0} 按现在的写法永远无法运行",
  "Card {0} of {1} is cordoned and empty: it can be serviced": "{1} 的卡 {0} 已封锁且为空：可以维护",
  "and {0} more": "以及另外 {0} 个",
  "Colour by": "着色依据",
  "Order": "排序",
  "Name": "名称",
  "Fullest first": "最满优先",
  "Emptiest first": "最空优先",
  "not known": "未知",
  "not usable": "不可用",
  "unhealthy": "不健康",
  "cordoned": "已封锁",
  "in MIG mode": "MIG 模式",
  "takes no pods": "不接收 Pod",
  "No node publishes cards.": "没有节点上报卡。",
  "card {0} of {1}": "{1} 的卡 {0}",
  "Drain first: least to move": "优先腾空：需迁移最少",
  "{0} pods, {1} cores": "{0} 个 Pod，{1} 算力",
  "Most cores booked and idle now": "当前闲置已分配算力最多",
  "{0} of {1} cores idle": "{1} 算力中闲置 {0}",
  "Fits now: waits for the scheduler": "现在放得下：等待调度器",
  "No room now": "现在没有空间",
  "Refused by a node a moment ago": "刚被某个节点拒绝",
  "Closed by quota": "受配额限制",
  "Too large for every node, or not legal": "对所有节点都太大，或不合法",
  "No node has cards for it": "没有节点有适合它的卡",
  "Being worked out": "正在计算",
  "No pod is waiting.": "没有等待中的 Pod。",
  "Pod": "Pod",
  "Age": "时长",
  "Priority": "优先级",
  "Requests": "请求",
  "Smallest change that helps": "最小的有效改动",
  "The quota cannot be read now.": "现在无法读取配额。",
  "No namespace has a quota.": "没有命名空间设置配额。",
  "Model": "型号",
  "Memory": "显存",
  "all models": "所有型号",
  "no limit": "不限",
  "over the quota": "超出配额",
  "Node": "节点",
  "Card": "卡",
  "Node {0}": "节点 {0}",
  "Card {0}": "卡 {0}",
  "Pod {0}": "Pod {0}",
  "used now": "正在使用",
  "booked": "已分配",
  "free": "空闲",
  "cores": "算力",
  "memory": "显存",
  "idle": "空闲",
  "running": "运行中",
  "ended": "已结束",
  "not started yet": "尚未启动",
  "another namespace": "其他命名空间",
  "gone, its processes still run (pod {0})": "已删除，进程仍在运行（Pod {0}）",
  "How the cards are joined": "卡之间的连接",
  "card {0}, {1}: {2} of 100 cores and {3} of {4} booked": "卡 {0}，{1}：已分配 {2} / 100 算力，{3} / {4} 显存",
  "{0} of {1} cores, {2} of {3}": "{0} / {1} 算力，{2} / {3}",
  "unhealthy: {0}": "不健康：{0}",
  "no reason given": "没有给出原因",
  "in MIG mode: left alone": "MIG 模式：不管理",
  "cordoned: nothing new is placed here": "已封锁：不再放置新的 Pod",
  "Who holds it": "占用者",
  "State": "状态",
  "Container": "容器",
  "What it holds": "它占用的资源",
  "No explanation: {0}": "没有解释：{0}",
  "History": "历史",
  "Cards' worth of cores used": "已用算力（折合卡数）",
  "Range": "时间范围",
  "10 minutes": "10 分钟",
  "1 hour": "1 小时",
  "6 hours": "6 小时",
  "1 day": "1 天",
  "7 days": "7 天",
  "No history: {0}": "没有历史数据：{0}",
  "Nothing yet: figures are kept while somebody looks.": "暂无数据：只有在有人查看时才会记录。",
  "Prometheus has no figures of that time.": "Prometheus 没有这段时间的数据。",
  "Waiting for their share (seconds in a second)": "等待份额的时间（每秒秒数）",
  "at most {0}": "最多 {0}",
  "{0}, last {1}: at most {2}": "{0}，最近 {1}：最多 {2}",
  "{0} to {1}": "{0} 至 {1}",
  "cores {0} on average, at most {1}": "算力平均 {0}，最多 {1}",
  "waited {0} of the time": "{0} 的时间在等待",
  "Node by node": "逐个节点",
  "would have room without: {0}": "如果没有这些 Pod 就有空间：{0}",
  "It is not among what is shown here: it may be gone, or another namespace's.": "它不在这里显示的内容中：可能已不存在，或属于其他命名空间。",
};

let chosen = "";

export const language = () => chosen;

export function speak(name) {
  chosen = name;
  document.documentElement.lang = name === "zh" ? "zh-CN" : "en";
  try {
    localStorage.setItem("language", name);
  } catch {
    // kept for this page only
  }
}

export function t(text, ...values) {
  const words = (chosen === "zh" && ZH[text]) || text;
  return words.replace(/\{(\d)\}/g, (_, at) => String(values[at]));
}

function usual() {
  try {
    const kept = localStorage.getItem("language");
    if (kept) return kept;
  } catch {
    // no storage: the browser's language
  }
  return navigator.language.startsWith("zh") ? "zh" : "en";
}
speak(usual());
