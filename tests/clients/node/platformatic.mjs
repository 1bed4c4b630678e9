// What @platformatic/kafka does with a cluster. Arguments and output as in kafkajs.mjs.
import { createRequire } from 'node:module'

Promise.withResolvers ??= function () { // it is written for Node 22; this lets it run on 20
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}
const require = createRequire(process.env.NODE_CLIENTS + '/')
const { Admin, Producer, Consumer, stringSerializers, stringDeserializers } = require('@platformatic/kafka')

const [bootstrap, prefix, transactions] = process.argv.slice(2)
const common = { clientId: 'esker-test', bootstrapBrokers: bootstrap.split(','), retries: 3 }
const topic = prefix + '-platformatic'
const groupId = prefix + '-group'
const claim = (name, holds, detail) => console.log(JSON.stringify({ name, holds: Boolean(holds), detail },
  (_, value) => typeof value === 'bigint' ? String(value) : value))
const texts = (from, to) => Array.from({ length: to - from }, (_, i) => `value-${from + i}`)

async function read (count) {
  const consumer = new Consumer({ ...common, groupId, deserializers: stringDeserializers, sessionTimeout: 10000, heartbeatInterval: 200, maxWaitTime: 100 })
  const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false })
  const found = []
  let last
  for await (const message of stream) {
    found.push(message.value)
    await message.commit()
    last = message
    if (found.length === count) break
  }
  await stream.close()
  await consumer.close(true)
  return last && found.sort()
}

const admin = new Admin(common)
const [created] = await admin.createTopics({ topics: [topic], partitions: 3, replicas: 1 })
claim('create topic', created.partitions === 3, created)

const producer = new Producer({ ...common, serializers: stringSerializers })
const send = async (compression, from, to, idempotent) => await producer.send({
  compression, acks: -1, idempotent, messages: texts(from, to).map(value => ({ topic, key: value, value, headers: { h: 'x' } }))
})
await send('none', 0, 10, true)
await send('gzip', 10, 20, true)
await send('snappy', 20, 30, true)
await send('lz4', 30, 40, true)
claim('produce and consume', String(await read(40)) === String(texts(0, 40).sort()))
await send('none', 40, 50, true)
claim('commit and resume', String(await read(10)) === String(texts(40, 50).sort()))
await producer.close()

const [{ partitions }] = await admin.listOffsets({ topics: [{ name: topic, partitions: [0, 1, 2].map(partitionIndex => ({ partitionIndex, timestamp: -1n })) }] })
claim('offsets', partitions.reduce((sum, one) => sum + Number(one.offset), 0) === 50, partitions)
const configs = await admin.describeConfigs({ resources: [{ resourceType: 2, resourceName: topic }] })
claim('describe configs', configs[0].configs.some(one => one.name === 'retention.ms'))
claim('list groups', (await admin.listGroups()).has(groupId))
await admin.deleteTopics({ topics: [topic] })
claim('delete topic', !(await admin.listTopics()).includes(topic))
await admin.close()

if (transactions !== 'transactions') {
  const began = Date.now()
  let refusal = null
  const writer = new Producer({ ...common, retries: 0, transactionalId: prefix + '-id', idempotent: true, serializers: stringSerializers })
  try {
    await writer.beginTransaction()
  } catch (error) {
    refusal = error.code ?? error.name
  }
  claim('no transactions', refusal !== null && Date.now() - began < 2000, { refusal, ms: Date.now() - began })
}
process.exit(0)
