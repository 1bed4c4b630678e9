// Administrative requests of three Go clients, each with a line that says what was answered.
//
// The same program runs on Esker and on Apache Kafka; lines hold no ids, addresses or times.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var volatile = regexp.MustCompile(`\[?[\w.:-]*\]?127\.0\.0\.1:\d+(->127\.0\.0\.1:\d+)?`)

func say(client, name string, err error, details ...any) {
	text := "ok"
	if err != nil {
		text = volatile.ReplaceAllString(strings.ReplaceAll(err.Error(), "\n", " "), "HOST")
	}
	fmt.Println(strings.TrimSpace(fmt.Sprintln(append([]any{client + " " + name + ":", text}, details...)...)))
}

// eventually asks again while the answer is not as wanted: Kafka's brokers learn of changes a moment later.
func eventually(wanted func() bool) {
	for tries := 0; !wanted() && tries < 100; tries++ {
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	addresses := strings.Split(os.Args[1], ",")
	franz(addresses)
	withSarama(addresses)
	segmentio(addresses[0])
}

func franz(addresses []string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	const who, topic, group = "kadm", "go-kadm", "go-kadm-group"

	created, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": kadm.StringPtr("7200000")}, topic)
	say(who, "create", err, created.NumPartitions, created.ReplicationFactor)
	_, err = admin.CreateTopic(ctx, 2, 1, nil, topic)
	say(who, "create again", err)
	say(who, "produce", client.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: 0, Value: []byte("v")}).FirstErr())
	grown, err := admin.CreatePartitions(ctx, 1, topic)
	say(who, "grow", err, grown[topic].Err)
	var described kadm.TopicDetails
	eventually(func() bool {
		described, err = admin.ListTopics(ctx, topic)
		return err != nil || len(described[topic].Partitions) == 3
	})
	say(who, "list topics", err, len(described[topic].Partitions))
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	say(who, "describe configs", err, len(configs))
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr("1000")}}, topic)
	say(who, "alter configs", err, altered[0].Err)
	altered, err = admin.AlterTopicConfigsState(ctx, []kadm.AlterConfig{{Name: "max.message.bytes", Value: kadm.StringPtr("2000")}}, topic)
	say(who, "replace configs", err, altered[0].Err)
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, 1, -1)
	say(who, "commit", admin.CommitAllOffsets(ctx, group, offsets))
	fetched, err := admin.FetchOffsets(ctx, group)
	say(who, "fetch offsets", err, fetched.Offsets()[topic][0].At)
	lags, err := admin.Lag(ctx, group)
	say(who, "lag", err, lags[group].State, lags[group].Lag.Total())
	deletedOffsets, err := admin.DeleteOffsets(ctx, group, offsets.TopicsSet())
	say(who, "delete offsets", err, deletedOffsets.Error())
	groups, err := admin.DeleteGroups(ctx, group, "go-nobody")
	say(who, "delete groups", err, groups[group].Err, groups["go-nobody"].Err)
	dirs, err := admin.DescribeAllLogDirs(ctx, kadm.TopicsSet{topic: nil})
	say(who, "log dirs", err, len(dirs))
	elected, err := admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, kadm.TopicsSet{topic: {0: {}}})
	say(who, "elect leaders", err, elected[topic][0].Err)
	moving, err := admin.ListPartitionReassignments(ctx, kadm.TopicsSet{topic: {0: {}}})
	say(who, "reassignments", err, len(moving))
	_, err = admin.DescribeACLs(ctx, kadm.NewACLs().AnyResource().Allow().AllowHosts().Deny().DenyHosts().Operations().ResourcePatternType(kadm.ACLPatternAny))
	say(who, "acls", err)
	quotas, err := admin.DescribeClientQuotas(ctx, false, nil)
	say(who, "quotas", err, len(quotas))
	scram, err := admin.DescribeUserSCRAMs(ctx)
	say(who, "scram", err, len(scram))
	producers, err := admin.DescribeProducers(ctx, kadm.TopicsSet{topic: {0: {}}})
	say(who, "producers", err, len(producers[topic].Partitions))
	transactions, err := admin.ListTransactions(ctx, nil, nil)
	say(who, "transactions", err, len(transactions))
	records := kadm.Offsets{}
	records.AddOffset(topic, 0, 1, -1)
	removed, err := admin.DeleteRecords(ctx, records)
	say(who, "delete records", err, removed.Error())
	resources := kmsg.NewPtrListConfigResourcesRequest()
	resources.ResourceTypes = []int8{int8(kmsg.ConfigResourceTypeTopic)}
	listed, err := resources.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(listed.ErrorCode)
	}
	say(who, "config resources", err)
	gone, err := admin.DeleteTopics(ctx, topic, "go-missing")
	say(who, "delete topics", err, gone[topic].Err, gone["go-missing"].Err)
}

func withSarama(addresses []string) {
	const who, topic, group = "sarama", "go-sarama", "go-sarama-group"
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	admin, err := sarama.NewClusterAdmin(addresses, config)
	if err != nil {
		panic(err)
	}
	defer admin.Close()
	say(who, "create", admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false))
	err = admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false)
	say(who, "create again", err)
	say(who, "grow", admin.CreatePartitions(topic, 3, nil, false))
	var found []*sarama.TopicMetadata
	eventually(func() bool {
		found, err = admin.DescribeTopics([]string{topic, "go-missing"})
		return err != nil || len(found[0].Partitions) == 3
	})
	say(who, "describe", err, len(found[0].Partitions), found[1].Err)
	value := "2000"
	say(who, "replace configs", admin.AlterConfig(sarama.TopicResource, topic, map[string]*string{"max.message.bytes": &value}, false))
	say(who, "alter configs", admin.IncrementalAlterConfig(sarama.TopicResource, topic, map[string]sarama.IncrementalAlterConfigsEntry{
		"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}}, false))
	var entries []sarama.ConfigEntry
	eventually(func() bool {
		entries, err = admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"max.message.bytes"}})
		return err != nil || entries[0].Value == value
	})
	say(who, "describe configs", err, len(entries), entries[0].Value)
	moving, err := admin.ListPartitionReassignments(topic, []int32{0})
	say(who, "reassignments", err, len(moving))
	brokers, _, err := admin.DescribeCluster()
	say(who, "cluster", err, len(brokers) > 0)
	ids := []int32{}
	for _, broker := range brokers {
		ids = append(ids, broker.ID())
	}
	dirs, err := admin.DescribeLogDirs(ids)
	say(who, "log dirs", err, len(dirs) == len(ids))
	elected, err := admin.ElectLeaders(sarama.PreferredElection, map[string][]int32{topic: {0}})
	say(who, "elect leaders", err, elected[topic][0].ErrorCode)
	_, err = admin.ListAcls(sarama.AclFilter{ResourceType: sarama.AclResourceAny, ResourcePatternTypeFilter: sarama.AclPatternAny,
		PermissionType: sarama.AclPermissionAny, Operation: sarama.AclOperationAny})
	say(who, "acls", err)
	quotas, err := admin.DescribeClientQuotas(nil, false)
	say(who, "quotas", err, len(quotas))
	scram, err := admin.DescribeUserScramCredentials(nil)
	say(who, "scram", err, len(scram))
	say(who, "delete records", admin.DeleteRecords(topic, map[int32]int64{0: 0}))
	say(who, "delete offset", admin.DeleteConsumerGroupOffset(group, topic, 0))
	say(who, "delete group", admin.DeleteConsumerGroup(group))
	described, err := admin.DescribeConsumerGroups([]string{group})
	say(who, "describe group", err, described[0].Err, described[0].State)
	say(who, "delete", admin.DeleteTopic(topic))
	say(who, "delete missing", admin.DeleteTopic("go-missing"))
}

func segmentio(address string) {
	const who, topic, group = "kafka-go", "go-segmentio", "go-segmentio-group"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	host, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		panic(err)
	}
	client := &kafka.Client{Addr: host, Timeout: 20 * time.Second}
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 2, ReplicationFactor: 1}}})
	if err == nil {
		err = created.Errors[topic]
	}
	say(who, "create", err)
	grown, err := client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 3}}})
	if err == nil {
		err = grown.Errors[topic]
	}
	say(who, "grow", err)
	replaced, err := client.AlterConfigs(ctx, &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, Configs: []kafka.AlterConfigRequestConfig{{Name: "max.message.bytes", Value: "2000"}}}}})
	if err == nil {
		for _, each := range replaced.Errors {
			err = errors.Join(err, each)
		}
	}
	say(who, "replace configs", err)
	altered, err := client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
			Name: "max.message.bytes", Value: "3000", ConfigOperation: kafka.ConfigOperationSet}}}}})
	if err == nil {
		err = altered.Resources[0].Error
	}
	say(who, "alter configs", err)
	value := ""
	eventually(func() bool {
		var described *kafka.DescribeConfigsResponse
		described, err = client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"max.message.bytes"}}}})
		if err == nil {
			value = described.Resources[0].ConfigEntries[0].ConfigValue
		}
		return err != nil || value == "3000"
	})
	say(who, "describe configs", err, value)
	elected, err := client.ElectLeaders(ctx, &kafka.ElectLeadersRequest{Topic: topic, Partitions: []int{0}, Timeout: 5 * time.Second})
	if err == nil {
		err = elected.PartitionResults[0].Error
	}
	say(who, "elect leaders", err)
	offsets, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(0)}}})
	if err == nil {
		err = offsets.Topics[topic][0].Error
	}
	say(who, "list offsets", err)
	removed, err := client.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{GroupID: group, Topics: map[string][]int{topic: {0}}})
	if err == nil {
		err = removed.Error
	}
	say(who, "delete offsets", err)
	groups, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	names := []string{}
	if err == nil {
		for _, each := range groups.Groups {
			names = append(names, each.GroupID)
		}
		sort.Strings(names)
	}
	say(who, "list groups", err, names)
	deleted, err := client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	if err == nil {
		err = deleted.Errors[group]
	}
	say(who, "delete groups", err)
	gone, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic, "go-missing"}})
	if err == nil {
		say(who, "delete missing", gone.Errors["go-missing"])
		err = gone.Errors[topic]
	}
	say(who, "delete", err)
}
