// What KafkaJS does with a cluster. Arguments: bootstrap, a prefix for names, "transactions" if the
// cluster has them. Prints one line of JSON for each claim; the test reads them.
import { createRequire } from 'node:module'
const require = createRequire(process.env.NODE_CLIENTS + '/')
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [bootstrap, prefix, transactions] = process.argv.slice(2)
const kafka = new Kafka({ clientId: 'esker-test', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING })
const topic = prefix + '-kafkajs'
const groupId = prefix + '-group'
const claim = (name, holds, detail) => console.log(JSON.stringify({ name, holds: Boolean(holds), detail }))
const texts = (from, to) => Array.from({ length: to - from }, (_, i) => `value-${from + i}`)

async function read (count) {
  const consumer = kafka.consumer({ groupId, sessionTimeout: 10000, heartbeatInterval: 200, maxWaitTimeInMs: 100 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const found = []
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${found.length} of ${count} came`)), 20000).unref()
    consumer.run({
      eachMessage: async ({ message }) => {
        found.push(message.value.toString())
        if (found.length === count) setTimeout(resolve, 50)
      }
    }).catch(reject)
  })
  await consumer.disconnect()
  return found.sort()
}

const admin = kafka.admin()
await admin.connect()
await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] })
const metadata = await admin.fetchTopicMetadata({ topics: [topic] })
claim('create topic', metadata.topics[0].partitions.length === 3, metadata)

const producer = kafka.producer({ idempotent: true })
await producer.connect()
const send = async (compression, from, to) => await producer.send({
  topic, compression, acks: -1, messages: texts(from, to).map(value => ({ key: value, value, headers: { h: 'x' } }))
})
await send(CompressionTypes.None, 0, 10)
await send(CompressionTypes.GZIP, 10, 20)
claim('produce and consume', String(await read(20)) === String(texts(0, 20).sort()))
await send(CompressionTypes.None, 20, 30)
claim('commit and resume', String(await read(10)) === String(texts(20, 30).sort()))
await producer.disconnect()

const ends = await admin.fetchTopicOffsets(topic)
claim('offsets', ends.reduce((sum, one) => sum + Number(one.high), 0) === 30, ends)
const busiest = ends.find(one => Number(one.high) > 0)
await admin.deleteTopicRecords({ topic, partitions: [{ partition: busiest.partition, offset: '1' }] })
const after = await admin.fetchTopicOffsets(topic)
claim('delete records', after.find(one => one.partition === busiest.partition).low === '1', after)
const configs = await admin.describeConfigs({ resources: [{ type: 2, name: topic }] })
claim('describe configs', configs.resources[0].configEntries.some(one => one.configName === 'retention.ms'))
const { groups } = await admin.listGroups()
claim('list groups', groups.some(one => one.groupId === groupId), groups)
await admin.deleteTopics({ topics: [topic] })
claim('delete topic', !(await admin.listTopics()).includes(topic))
await admin.disconnect()

if (transactions !== 'transactions') {
  const began = Date.now()
  let refusal = null
  try {
    const writer = kafka.producer({ transactionalId: prefix + '-id', maxInFlightRequests: 1, idempotent: true, retry: { retries: 0 } })
    await writer.connect()
    await writer.transaction()
  } catch (error) {
    refusal = error.type ?? error.name
  }
  claim('no transactions', refusal !== null && Date.now() - began < 2000, { refusal, ms: Date.now() - began })
}
process.exit(0)
