locals {
  makes_role = var.role_arn == ""
  role_arn   = local.makes_role ? aws_iam_role.this[0].arn : var.role_arn

  region    = split(".", var.image)[3]
  partition = startswith(local.region, "cn-") ? "aws-cn" : startswith(local.region, "us-gov-") ? "aws-us-gov" : "aws"

  model_sources = [
    for address in [var.model_url, var.model_prefix] : trimprefix(address, "s3://") if startswith(address, "s3://")
  ]
  model_objects = [
    for source in local.model_sources : "arn:${local.partition}:s3:::${source}${endswith(source, "/") ? "*" : ""}"
  ]
  model_buckets = [for source in local.model_sources : "arn:${local.partition}:s3:::${split("/", source)[0]}"]
  output_arn    = "arn:${local.partition}:s3:::${var.output_bucket}"

  topics = compact([var.success_topic_arn, var.error_topic_arn])

  statements = concat(
    [
      {
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = concat(local.model_objects, ["${local.output_arn}/*"])
      },
      {
        Effect   = "Allow"
        Action   = ["s3:PutObject"]
        Resource = ["${local.output_arn}/${var.name}/*"]
      },
      {
        Effect   = "Allow"
        Action   = ["s3:ListBucket"]
        Resource = concat(local.model_buckets, [local.output_arn])
      },
      {
        Effect   = "Allow"
        Action   = ["ecr:GetAuthorizationToken", "cloudwatch:PutMetricData"]
        Resource = ["*"] # neither knows resources
      },
      {
        Effect   = "Allow"
        Action   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
        Resource = ["arn:${local.partition}:ecr:${local.region}:${split(".", var.image)[0]}:repository/${local.repository}"]
      },
      {
        Effect   = "Allow"
        Action   = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
        Resource = ["arn:${local.partition}:logs:*:*:log-group:/aws/sagemaker/*"]
      },
    ],
    length(local.topics) == 0 ? [] : [
      { Effect = "Allow", Action = ["sns:Publish"], Resource = local.topics },
    ],
    length(var.subnets) == 0 ? [] : [
      {
        Effect = "Allow"
        Action = [
          "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface",
          "ec2:DeleteNetworkInterfacePermission", "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces",
          "ec2:DescribeSecurityGroups", "ec2:DescribeSubnets", "ec2:DescribeVpcs",
        ]
        Resource = ["*"] # SageMaker makes its interfaces with this role
      },
    ],
  )

  # NAME of ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG or NAME@sha256:...
  repository = split(":", split("@", join("/", slice(split("/", var.image), 1, length(split("/", var.image)))))[0])[0]
}

resource "aws_iam_role" "this" {
  count = local.makes_role ? 1 : 0

  name_prefix = "${substr(var.name, 0, 26)}-"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "sagemaker.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "this" {
  count = local.makes_role ? 1 : 0

  name   = "serve"
  role   = aws_iam_role.this[0].id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.statements })
}
